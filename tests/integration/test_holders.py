"""Who holds versions at the store, and what becomes of it when a holder is gone. A store, and no engine."""

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
