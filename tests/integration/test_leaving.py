"""A program that is asked to go while a call hangs goes without it, and destroys nothing that the call still uses."""

import os
import subprocess

import grpc
import lorry
import pytest
from lorry.connection import Connection
from lorry.sync.v1 import sync_pb2
from testing.fleet import Fleet
from testing.waiting import until

NAMED = {"member": "a", "reason": "test"}
DEAD = sync_pb2.MarkMemberRequest(mark=sync_pb2.MarkMemberRequest.MARK_DEAD, **NAMED)
NO_MARK = sync_pb2.MarkMemberRequest(**NAMED)


def test_an_orchestrator_whose_disk_is_full_goes_when_it_is_asked_to(bin_dir, tiny, tmp_path):
    fleet = Fleet(bin_dir, tmp_path, {}, store_flags={"ucx": "false"})
    data = fleet.orchestrator.data_dir
    data.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", data]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small file system takes root to mount")
    try:
        fleet.store.start().wait_ready()
        fleet.orchestrator.start().wait_ready()
        with pytest.raises(OSError, match="No space left"), (data / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        addresses = fleet.addresses()
        with lorry.open_run("policy", **addresses) as run:
            run.publish(tiny / "adapters" / "v1", version=1).wait("stored", 30)
        log = fleet.orchestrator.log_path
        until(lambda: "cannot write its records" in log.read_text(), "it works on nothing else any more")
        connection = Connection(**addresses)
        hanging = [connection.sync.MarkMember.future(DEAD, timeout=100) for _ in range(8)]
        with pytest.raises(grpc.RpcError) as said:
            connection.sync.MarkMember(NO_MARK, timeout=30)
        assert said.value.code() == grpc.StatusCode.INVALID_ARGUMENT, "this call came after those"
        assert fleet.orchestrator.stop() == 1
        assert "leaving without waiting any longer" in log.read_text(), fleet.orchestrator.log_tail()
        assert "MarkMember" in log.read_text()
        for call in hanging:
            assert call.exception() is not None
    finally:
        fleet.orchestrator.kill()
        fleet.store.stop()
        subprocess.run(["umount", data], check=True)
