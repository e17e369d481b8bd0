"""Who holds versions at the store, and what becomes of it when a holder is gone. A store, and no engine."""

import subprocess

import lorry
import pytest
from lorry.common.v1 import adapter_pb2
from lorry.connection import Connection
from lorry.store.v1 import store_pb2
from testing.engines import free_port
from testing.fleet import Service

ADAPTER = "math-policy"
HOLDER = "orchestrator:gone"


@pytest.fixture
def store(bin_dir, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    service = Service(bin_dir / "adapter-store", "store", tmp_path, {"listen": address, "ucx": "false"})
    service.start().wait_ready()
    yield address
    service.stop()


def test_what_a_holder_that_is_gone_keeps_can_be_released(store, make_adapter):
    with lorry.Admin(store) as admin, lorry.open_run(ADAPTER, store=store) as run:
        run.publish(make_adapter(1), version=1).wait("stored", 60)
        held = [adapter_pb2.VersionRef(adapter=ADAPTER, run=1, number=1)]
        connection = Connection(store)
        connection.store.SetHolds(store_pb2.SetHoldsRequest(holder=HOLDER, incarnation=7, revision=3, versions=held), timeout=10)
        with pytest.raises(lorry.LorryError, match=f"IN_USE.*{HOLDER}"):
            admin.delete(ADAPTER, 1)
        admin.release_holder(HOLDER)
        admin.release_holder(HOLDER)
        admin.delete(ADAPTER, 1)
        assert admin.versions(ADAPTER) == []


def test_the_command_line_releases_a_holder_and_says_what_it_held(store, bin_dir, make_adapter):
    def release(holder):
        words = [bin_dir / "lorry", "release-holder", holder, "--store", store]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    with lorry.Admin(store) as admin, lorry.open_run(ADAPTER, store=store) as run:
        for version in (1, 2):
            run.publish(make_adapter(version), version=version).wait("stored", 60)
        held = [adapter_pb2.VersionRef(adapter=ADAPTER, run=1, number=1)]
        connection = Connection(store)
        connection.store.SetHolds(store_pb2.SetHoldsRequest(holder=HOLDER, incarnation=7, revision=3, versions=held), timeout=10)
        assert release("orchestrator:gon") == (0, "orchestrator:gon holds nothing; what `lorry delete` says names who does\n")
        with pytest.raises(lorry.LorryError, match="IN_USE"):
            admin.delete(ADAPTER, 1)
        assert release(HOLDER) == (0, f"{HOLDER} lets go of 1 version: {ADAPTER} r1.1\n")
        admin.delete(ADAPTER, 1)
        admin.set_alias(ADAPTER, "best", 2)
        code, said = release("alias:best")
        assert code == 2 and "--remove" in said, said
        assert admin.aliases(ADAPTER) == {"best": (1, 2)}
