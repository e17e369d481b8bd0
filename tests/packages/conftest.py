"""What is built once for all tests of packages, and a real store for what is installed."""

import os
import pathlib
import sys

import pytest
from environments import ROOT, Environment, run
from testing.engines import free_port
from testing.fleet import Service


@pytest.fixture(scope="session")
def make_environment(tmp_path_factory):
    return lambda name: Environment(tmp_path_factory.mktemp("env") / name)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """What a clone has: tracked files, and nothing that was built."""
    out = tmp_path_factory.mktemp("checkout")
    tracked = run(["git", "-C", ROOT, "ls-files", "-z", "clients/python", "proto", "LICENSE"]).split("\0")[:-1]
    run(["cp", "--no-dereference", "--parents", "-t", out, *tracked], cwd=ROOT)
    return out


@pytest.fixture(scope="session")
def built(checkout, tmp_path_factory):
    """lorry-client's source distribution, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("client")
    for older in "lorry_client-0.0.1-py3-none-any.whl", "lorry_client-0.0.1.tar.gz":
        (out / older).write_bytes(b"what an earlier release left")
    run([sys.executable, ROOT / "packaging" / "build.py", "client", "--sources", checkout / "clients" / "python", "--out", out])
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"sdist": sdist, "wheel": wheel}


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """A real adapter-store's address."""
    port = free_port()
    flags = {"listen": f"127.0.0.1:{port}", "ucx": "false"}
    service = Service(pathlib.Path(os.environ["LORRY_BIN_DIR"]) / "adapter-store", "store", tmp_path_factory.mktemp("store"), flags)
    try:
        service.start().wait_ready()
        yield f"127.0.0.1:{port}"
    finally:
        service.stop()
