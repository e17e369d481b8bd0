"""docs/OPERATIONS.md, "Several hosts without Kubernetes": its commands, one after another, as they stand there."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from testing import engines
from testing.doors import DoorClient
from testing.engines import ROOT, free_port
from testing.waiting import DEADLINE_S, until

PUBLISHES = """
import sys, lorry
with lorry.open_run("policy") as run:
    print(run.publish(sys.argv[1], version=1).wait("serving", 60).active)
"""


@pytest.fixture
def commands(bin_dir, tiny, tmp_path):
    """The page's, with this machine's names, free ports, and folders of the test."""
    page = (ROOT / "docs" / "OPERATIONS.md").read_text()
    (section,) = re.findall(r"\n## Several hosts without Kubernetes\n(.*?)\n## ", page, re.DOTALL)
    with engines.running(engines.fake("vllm", tiny / "model", log_dir=tmp_path)) as (engine,):
        ports = {port: free_port() for port in sorted(set(re.findall(r":(74\d\d)\b", section)))}
        here = {"engine-host-30000": f"engine-host-{engine.port}", "deploy/make-tokens": f"{ROOT}/deploy/make-tokens",
                "/etc/lorry": f"{tmp_path}/lorry.d", "/var/lib/lorry": f"{tmp_path}/data",
                re.search(r"--engine=(\S+)", section)[1]: engine.url, "DNS:store-host,DNS:engine-host": "DNS:localhost", "=store-host": "=localhost",
                "=engine-host ": "=localhost ", **{f":{port}": f":{free}" for port, free in ports.items()}}
        for named, mine in here.items():
            assert named in section, named
            section = section.replace(named, mine)
        yield re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


@contextlib.contextmanager
def running(command, folder, environment):
    with (folder / f"{command.split()[0]}.log").open("wb") as log:
        process = subprocess.Popen(["sh", "-c", f"exec {command}"], cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(DEADLINE_S) == 0, (folder / f"{command.split()[0]}.log").read_text()


def test_a_fleet_on_several_hosts_is_started_as_the_page_says(commands, bin_dir, make_adapter, tmp_path):
    make, *programs, find = commands
    (member,) = re.findall(r"--member=(\S+)", programs[-1])
    folder = pathlib.Path(f"/dev/shm/lorry-{os.geteuid()}/{member}")  # which the page leaves to the proxy
    assert [command.split()[0] for command in programs] == ["adapter-store", "sync-orchestrator", "engine-proxy"]
    environment = os.environ | {"PATH": f"{bin_dir}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "clients" / "python" / "src")}
    subprocess.run(["sh", "-ec", make], cwd=tmp_path, env=environment, check=True, capture_output=True)

    def found(what):
        return subprocess.run(["sh", "-ec", f"{find}{what}"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for command in programs:
            stack.enter_context(running(command, tmp_path, environment))
        until(lambda: "READY" in found("lorry engines").stdout, "the engine is READY", DEADLINE_S)
        published = found(f"{sys.executable} -c '{PUBLISHES}' {make_adapter(1)}")
        assert published.returncode == 0 and published.stdout.endswith("\n1\n"), published
        (door,) = re.findall(r"http://localhost:\d+", found("lorry engines").stdout)
        assert DoorClient("vllm", door).ask("policy").version == 1
        operator = found(f"LORRY_TOKEN_FILE=lorry.d/operator lorry drain {member}")
        assert operator.returncode == 0, operator
