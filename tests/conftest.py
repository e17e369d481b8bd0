"""What every suite with engines shares: which kind, and one pair of them for a whole run."""

import pathlib
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), str(TESTS / "fakes"), str(TESTS.parent / "clients" / "python" / "src")]


def pytest_addoption(parser):
    parser.addoption("--engines", choices=("fake", "real"), default="fake")


def pytest_configure(config):
    """A run that ends, and one that is asked to, takes its engines and services with it."""
    from testing import outlive

    outlive.guard(heeds_ctrl_c=True)


@pytest.fixture(scope="session")
def engine_pair(request, tmp_path_factory):
    """{"sglang": ..., "vllm": ...}, fake or real as asked; started once a run, side by side."""
    from testing import engines

    logs, model = tmp_path_factory.mktemp("engines"), engines.tiny_model() / "model"
    make = engines.real if request.config.getoption("--engines") == "real" else engines.fake
    chosen = [make(kind, model, log_dir=logs, args=engines.SLOT_ARGS[kind]) for kind in engines.KINDS]
    with engines.running(*chosen):
        for engine in chosen:
            print(f"\n{engine.kind} ready after {engine.ready_after_s:.1f} s")
        yield {engine.kind: engine for engine in chosen}
