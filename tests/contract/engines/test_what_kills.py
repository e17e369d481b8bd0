"""What ends an engine's process. Comes last: nothing is left of the engine afterwards."""

import contextlib
import http.client
import shutil

import pytest
from testing.engines import SLOTS


@pytest.mark.kind("sglang")
def test_sglang_dies_of_a_wrong_shape_at_first_use(api, adapters, fresh):
    name = fresh()
    assert api.load(name, adapters / "wrongshape").status == 200
    with contextlib.suppress(OSError, http.client.HTTPException):
        api.generate(name, timeout_s=30)
    api.engine.wait_dead()


@pytest.mark.kind("vllm")
def test_vllm_dies_when_an_evicted_adapters_directory_is_gone_at_its_next_use(api, adapters, fresh):
    name = fresh()
    shutil.copytree(adapters / "v1", adapters / "gone")
    api.load(name, adapters / "gone")
    for _ in range(SLOTS):
        api.load(fresh(), adapters / "v2")
    shutil.rmtree(adapters / "gone")
    with contextlib.suppress(OSError, http.client.HTTPException):
        api.generate(name, timeout_s=30)
    api.engine.wait_dead()
