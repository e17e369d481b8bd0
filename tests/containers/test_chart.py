"""The chart as it renders: pods on networks of their own serve what a trainer on a third publishes."""

import pathlib
import subprocess
import sys

import pytest
from chart import Release, tokens
from conftest import CLIENT, ENGINE, TESTS
from node import Trainer

VARIANTS = {
    "tokens in clear": {},
    "certificates and tokens": {"tls": {"enabled": True, "existingSecret": "tls"}},
    "IPv6 alone": {},
}


def make_certificates(folder: pathlib.Path, names: list[str]) -> dict[str, dict[str, str]]:
    """An authority, a certificate of the programs with `names`, and one of trainers: Secret → key → PEM."""
    folder.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.crt",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    for who, alternative in (("programs", ",".join(f"DNS:{name}" for name in names)), ("trainer", "URI:spiffe://test/trainer")):
        openssl("req", *key, "-subj", f"/CN={who}", "-keyout", f"{who}.key", "-out", f"{who}.csr")
        (folder / "extensions").write_text(f"subjectAltName={alternative}\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl("x509", "-req", "-in", f"{who}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-out", f"{who}.crt", "-extfile", "extensions")
    return {
        who: {"tls.crt": (folder / f"{who}.crt").read_text(), "tls.key": (folder / f"{who}.key").read_text(),
              "ca.crt": (folder / "ca.crt").read_text()}
        for who in ("programs", "trainer")
    }


def fake_vllm(model: pathlib.Path) -> dict:
    """Values of an engine: the chart runs the fake, with this machine's Python, where it would run vLLM."""
    return {
        "enabled": True, "replicas": 2, "image": ENGINE, "port": 8000,
        "command": [sys.executable, str(TESTS / "fakes/fake_vllm.py")], "args": ["--port=8000", f"--model={model}"],
        "env": [{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}],
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_published_version_is_served(variant, images, make_node, tiny, judge):
    node = make_node("ipv6" if "IPv6" in variant else "ipv4")
    secrets = {"lorry-tokens": tokens(node.folder / "tokens")}
    credentials = {"token": secrets["lorry-tokens"]["publisher"]}
    if "certificates" in variant:
        made = make_certificates(node.folder / "pem", ["lorry-store.fleet.svc", "lorry-orchestrator.fleet.svc", "lorry-proxy.fleet.svc"])
        secrets["tls"] = made["programs"]
        credentials |= {name: str(node.folder / "pem" / file) for name, file in CLIENT.items()}
    values = {"engine": fake_vllm(tiny / "model"), **VARIANTS[variant]}
    release = Release(node, images, "lorry", "fleet", values, secrets)
    release.start()

    trainer = Trainer(node, f"{TESTS.parent}/clients/python/src:{TESTS}", {
        "LORRY_STORE": "lorry-store.fleet.svc:7400", "LORRY_ORCHESTRATOR": "lorry-orchestrator.fleet.svc:7410",
    })
    answers = trainer.publish(tiny / "adapters" / "v1", 1, credentials)
    assert len(answers) == 2, answers
    for door, answer in answers.items():
        judge(answer, tiny / "adapters" / "v1", 1)
        assert "127.0.0.1" not in door and "0.0.0.0" not in door, door

    doctor = release.cli("doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "✗" not in doctor.stdout, doctor.stdout
    asked = next(iter(answers.values()))["headers"]["x-lorry-request-id"]
    why = release.cli("why", "why", asked)
    assert why.returncode == 0 and "policy" in why.stdout, why.stdout + why.stderr
    assert set(node.stop().values()) == {0}
