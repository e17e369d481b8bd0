"""What a release is installed with: certificates in Secrets, and an engine that is a fake."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

# The image that stands for an engine's: this machine's own root, where the fake is.
ENGINE = "this-machine"
FAKES = pathlib.Path(__file__).resolve().parents[1] / "fakes"


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


def fake_vllm(model: pathlib.Path, replicas: int = 2, **switches: object) -> dict:
    """Values of an engine: the chart runs the fake (`switches`: of engine_core.py), with this machine's Python, where it would run vLLM."""
    return {
        "enabled": True, "replicas": replicas, "image": ENGINE, "port": 8000,
        "command": [sys.executable, str(FAKES / "fake_vllm.py")], "args": ["--port=8000", f"--model={model}", f"--fake={json.dumps(switches)}"],
        "env": [{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}],
    }
