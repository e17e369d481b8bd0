"""The real programs in front of fake engines, or of real ones.

LORRY_BIN_DIR=build/dev/bin .venv/dev/bin/python -m pytest tests/integration                   # fakes: minutes
LORRY_BIN_DIR=build/dev/bin .venv/dev/bin/python -m pytest tests/integration --engines real    # real: minutes
"""

import os
import pathlib
import shutil
import threading
import types

import numpy as np
import pytest
from lorry.mover import MOVED_BYTES_MIN
from safetensors.numpy import load_file, save_file
from testing import engines
from testing.world import World

HERE = pathlib.Path(__file__).resolve().parent
WEIGHTS = "adapter_model.safetensors"


def pytest_configure(config):
    config.addinivalue_line("markers", "real: runs against real engines only")


def pytest_collection_modifyitems(config, items):
    chosen = config.getoption("--engines") == "real"
    own = [i for i in items if i.path.is_relative_to(HERE)]
    other = [i for i in own if bool(i.get_closest_marker("real")) != chosen]
    config.hook.pytest_deselected(items=other)
    items[:] = [i for i in items if i not in other]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """A failure shows what the services said."""
    outcome = yield
    world = getattr(item, "funcargs", {}).get("world")
    if outcome.get_result().failed and isinstance(world, World):
        world.print_logs()


@pytest.fixture(scope="session")
def bin_dir():
    folder = os.environ.get("LORRY_BIN_DIR")
    if not folder:
        pytest.fail("LORRY_BIN_DIR names no folder with the programs")
    return pathlib.Path(folder)


@pytest.fixture(scope="session")
def tiny():
    """tools/engines/tiny_model.py: model/, adapters/."""
    return engines.tiny_model()


@pytest.fixture(scope="session")
def large():
    """`state` and `config` of an adapter of 24 MiB, which is worth a mover's while."""
    noise = np.random.default_rng(3)
    rank, width, state = 32, 8192, {}
    for layer in range(6):
        for part in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}.lora_"
            state[name + "A.weight"] = noise.standard_normal((rank, width), dtype=np.float32)
            state[name + "B.weight"] = noise.standard_normal((width, rank), dtype=np.float32)
    assert sum(t.nbytes for t in state.values()) > MOVED_BYTES_MIN
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj", "v_proj"]}
    return types.SimpleNamespace(state=state, config=config)


@pytest.fixture(scope="session")
def make_adapter(tiny, tmp_path_factory):
    """make_adapter(n): a directory of a good adapter; each n has bytes of its own. Any thread may ask."""
    folder = tmp_path_factory.mktemp("adapters")
    tensors = load_file(tiny / "adapters" / "v1" / WEIGHTS)

    lock = threading.Lock()

    def make(n: int) -> pathlib.Path:
        with lock:
            return made(n)

    def made(n: int) -> pathlib.Path:
        out = folder / f"a{n}"
        if not out.is_dir():
            shutil.copytree(tiny / "adapters" / "v1", out)
            noise = np.random.default_rng(n)
            changed = {
                k: v + noise.standard_normal(v.shape, dtype=v.dtype) * np.float32(0.01) if "lora_B" in k else v
                for k, v in tensors.items()
            }
            save_file(changed, out / WEIGHTS, metadata={"format": "pt"})
        return out

    return make


@pytest.fixture(scope="module")
def world(bin_dir, tiny, tmp_path_factory):
    """A fleet in front of one fake SGLang and one fake vLLM."""
    folder = tmp_path_factory.mktemp("fleet")
    pair = [engines.fake(kind, tiny / "model", log_dir=folder) for kind in engines.KINDS]
    with World(bin_dir, folder, *pair) as made:
        yield made
