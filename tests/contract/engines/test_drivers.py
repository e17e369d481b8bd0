"""The proxy's own C++ drivers against the real engines: the cases of drivers_test that need no switch of a fake."""

import os
import pathlib
import subprocess

import pytest

# A few seconds on an idle machine.
DEADLINE_S = 300.0


def test_the_drivers_pass_against_real_engines(request, engine_pair):
    if request.config.getoption("--engines") == "fake":
        pytest.skip("ctest's engines_drivers runs them against fakes")
    binary = pathlib.Path(os.environ["LORRY_BIN_DIR"]).resolve() / "engines_drivers_test"
    urls = {f"LORRY_{kind.upper()}_URL": engine.url for kind, engine in engine_pair.items()}
    ran = subprocess.run(
        [binary, "--gtest_filter=*SeamTest*"],
        env=os.environ | urls,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "SeamTest.LoadsProbesAndUnloads/sglang" in ran.stdout
    assert "SeamTest.LoadsProbesAndUnloads/vllm" in ran.stdout
