"""Fleets of several engines whose faults are planned, a new one for each test."""

import pytest
from testing.crowd import PAIRS, Crowd


@pytest.fixture
def crowd(request, bin_dir, tiny, tmp_path):
    """crowd("sglang-1", "vllm-1", ...): a started Crowd; two engines of each kind unless told otherwise."""
    made: list[Crowd] = []

    def make(*members: str, **options) -> Crowd:
        world = Crowd(bin_dir, tmp_path, tiny / "model", *(members or PAIRS), **options)
        made.append(world)
        request.node.world = world.__enter__()
        return world

    yield make
    for world in made:
        world.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """A failure that nobody expected shows what the services said."""
    outcome = yield
    if outcome.get_result().failed and hasattr(item, "world"):
        item.world.print_logs()
