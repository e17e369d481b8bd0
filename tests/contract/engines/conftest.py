"""The contract suite of engines: fakes, or real ones.

.venv/dev/bin/python -m pytest tests/contract/engines --engines fake     # seconds
.venv/dev/bin/python -m pytest tests/contract/engines --engines real     # needs tools/setup-venvs; minutes
"""

import pathlib
import shutil
import uuid

import pytest
from testing import engines
from testing.engine_api import EngineApi


def pytest_collection_modifyitems(config, items):
    if config.getoption("--engines") == "real":
        skip = pytest.mark.skip(reason="a switch that only the fakes have, or a restart that takes minutes")
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


@pytest.fixture
def api(request, engine_pair):
    """The engine with nothing loaded and nothing paused, before and after."""
    api = EngineApi(engine_pair[request.param])
    clear(api)
    yield api
    clear(api)


def clear(api):
    if api.engine.is_running():
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
