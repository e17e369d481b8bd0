"""deploy/compose.yaml as it stands: containers on a network of their own serve what a trainer elsewhere publishes."""

import subprocess
import sys

import lorry
from compose import Project
from conftest import TESTS
from dockerfile import ROOT
from node import Container, Trainer


def test_a_published_version_is_served(images, make_node, tiny, judge):
    node = make_node("ipv4")
    secrets = node.folder / "tokens.d"
    subprocess.run([ROOT / "deploy" / "make-tokens", secrets], check=True)
    # As the file's first lines ask for.
    subprocess.run(["chown", "-R", "65532", secrets], check=True)
    # tidy: allow fixed-port: in a network namespace of its own
    project = Project(node, images, {"ENGINE_URL": "http://127.0.0.1:8000", "DOOR": "engine-proxy:7420"}, secrets)
    images_volume = next(m for m in project.container("engine-proxy").mounts if m.target.startswith("/dev/shm"))
    project.pods["engine-proxy"].start(Container(
        "engine", None, [sys.executable, str(TESTS / "fakes/fake_vllm.py"), "--port=8000", f"--model={tiny / 'model'}"],
        [images_volume],
    ))
    project.start()
    trainer = Trainer(node, f"{TESTS.parent}/clients/python/src:{TESTS}", {
        "LORRY_STORE": "adapter-store:7400", "LORRY_ORCHESTRATOR": "sync-orchestrator:7410",
    })
    answers = trainer.publish(tiny / "adapters" / "v1", 1, {"token": (secrets / "publisher").read_text()})
    (answer,) = answers.values()
    judge(answer, tiny / "adapters" / "v1", 1)
    with lorry.Admin(
        f"{project.pods['adapter-store'].address}:7400", f"{project.pods['sync-orchestrator'].address}:7410",
        token=(secrets / "reader").read_text(),
    ) as admin:
        assert [member["member"] for member in admin.status()["members"]] == ["engine-0"]
        project.stop("engine-proxy")
        assert admin.status().get("members", []) == [], "it said goodbye"
    assert set(node.stop().values()) <= {0, 143}
