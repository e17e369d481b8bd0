"""Engines for the contract suite. Each is started once a run; the real ones start side by side.

.venv/dev/bin/python -m pytest tests/contract/engines --engines fake     # seconds
.venv/dev/bin/python -m pytest tests/contract/engines --engines real     # needs tools/setup-venvs; minutes
"""

import pathlib
import shutil
import sys
import uuid

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS), str(TESTS / "fakes")]

from testing import engines  # noqa: E402
from testing.engine_api import EngineApi  # noqa: E402

SLOTS = 8
# Both kinds hold eight adapters and run eight requests, so that the same case reaches the same limit.
ARGS = {"sglang": ["--max-loaded-loras", str(SLOTS)], "vllm": ["--max-cpu-loras", str(SLOTS)]}


def pytest_addoption(parser):
    parser.addoption("--engines", choices=("fake", "real"), default="fake")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--engines") == "real":
        skip = pytest.mark.skip(
            reason="a switch that only the fakes have, or a restart that takes minutes"
        )
        for item in items:
            if item.get_closest_marker("fake_only"):
                item.add_marker(skip)


def pytest_configure(config):
    config.addinivalue_line("markers", "fake_only: not run against real engines")
    config.addinivalue_line("markers", "kind(name): runs against one kind of engine")


def pytest_generate_tests(metafunc):
    if "api" in metafunc.fixturenames:
        only = next((m.args[0] for m in metafunc.definition.iter_markers("kind")), None)
        metafunc.parametrize("api", [only] if only else engines.KINDS, indirect=True)


@pytest.fixture(scope="session")
def all_engines(request, tmp_path_factory):
    logs, model = tmp_path_factory.mktemp("engines"), engines.tiny_model() / "model"
    make = engines.real if request.config.getoption("--engines") == "real" else engines.fake
    chosen = [make(kind, model, log_dir=logs, args=ARGS[kind]) for kind in engines.KINDS]
    with engines.running(*chosen):
        for engine in chosen:
            print(f"\n{engine.kind} ready after {engine.ready_after_s:.1f} s")
        yield {engine.kind: engine for engine in chosen}


@pytest.fixture
def api(request, all_engines):
    """The engine, left as it was found: nothing loaded, nothing paused."""
    engine = all_engines[request.param]
    api = EngineApi(engine)
    yield api
    if engine.is_running():
        api.resume()
        for name in api.listed():
            api.unload(name)


@pytest.fixture
def adapters(tmp_path):
    """A private copy of the tiny adapters, so that a case may delete directories."""
    return pathlib.Path(shutil.copytree(engines.tiny_model() / "adapters", tmp_path / "adapters"))


@pytest.fixture
def fresh():
    """Names that no case has used before: real engines remember names."""
    return lambda: f"policy-v1-{uuid.uuid4().hex[:12]}"
