"""What a manifest asks of a container holds here: otherwise the tests beside this one would show less than they say."""

import sys

import pytest
from sandbox import Sandbox, memory_controller

MIB = 1 << 20
TAKE = f"import sys; taken = b'x' * (int(sys.argv[1]) * {MIB}); print(len(taken))"


@pytest.mark.skipif(memory_controller() is None, reason="this machine lets nobody limit memory by groups")
@pytest.mark.parametrize(("limit_mib", "lives"), [(256, True), (48, False)])
def test_who_outgrows_its_memory_is_killed(limit_mib, lives):
    sandbox = Sandbox([], memory_bytes=limit_mib * MIB)
    done = sandbox.run([sys.executable, "-c", TAKE, "96"])
    assert (done.returncode == 0) == lives, done.stderr
    assert not (memory_controller()[0] / sandbox.group).exists()


@pytest.mark.parametrize("default_profile", [False, True])
def test_the_default_profile_keeps_system_calls_away(default_profile):
    done = Sandbox([], default_profile=default_profile).run(["unshare", "--user", "true"])
    assert (done.returncode == 0) != default_profile, done.stderr
    assert ("Operation not permitted" in done.stderr) == default_profile
