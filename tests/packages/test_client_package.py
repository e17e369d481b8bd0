"""lorry-client as a stranger gets it: built from a clean checkout, installed into fresh environments, used."""

import pathlib
import re
import tarfile
import zipfile

import pytest
from environments import ROOT
from testing.engines import tiny_model

HERE = pathlib.Path(__file__).resolve().parent


def publishes(environment, store) -> tuple[str, bool]:
    """Publishes from there; the client's version, and whether it lies in the environment."""
    said = environment.run(environment.python, "-W", "error", HERE / "publish.py", tiny_model() / "adapters" / "v1",
                           LORRY_STORE=store)
    version, inside, digest = said.split()
    assert digest.startswith("sha256-xxh3:")
    return version, inside == "True"


# How it may be installed: what, and how the resolver chooses.
WAYS = {
    "wheel, newest": ["{wheel}"],
    "wheel, oldest": ["--resolution=lowest", "--only-binary=:all:", "{wheel}"],
    "sdist": ["{sdist}"],
    "folder": ["{folder}"],
    "editable": ["-e", "{folder}"],
}


@pytest.mark.parametrize("way", WAYS)
def test_it_publishes_however_it_was_installed(way, built, checkout, make_environment, store):
    folder = checkout / "clients" / "python"
    environment = make_environment(way.replace(", ", "-"))
    environment.install(*[word.format(folder=folder, **built) for word in WAYS[way]])
    version, inside = publishes(environment, store)
    assert version == project_version()
    assert inside == (way != "editable")


def test_pip_installs_it_too(built, make_environment, store):
    environment = make_environment("pip")
    environment.run(environment.python, "-m", "pip", "install", "--quiet", built["wheel"])
    assert publishes(environment, store)[1]


def test_the_wheel_is_whole_and_says_what_it_is(built):
    names = zipfile.ZipFile(built["wheel"]).namelist()
    assert built["wheel"].name.endswith("-py3-none-any.whl")
    protos = list((ROOT / "proto" / "lorry").rglob("*.proto"))
    assert len([n for n in names if n.endswith("_pb2.py")]) == len(protos)
    assert len([n for n in names if n.endswith("_pb2.pyi")]) == len(protos)
    for wanted in ("lorry/py.typed", "licenses/LICENSE"):
        assert any(n.endswith(wanted) for n in names), wanted
    sources = tarfile.open(built["sdist"]).getnames()
    assert len([n for n in sources if n.endswith(".proto")]) == len(protos)
    assert not [n for n in sources if "_pb2" in n], "messages are made where the wheel is"


def test_a_type_checker_finds_wrong_words(built, make_environment, tmp_path):
    environment = make_environment("typed")
    environment.install(built["wheel"], "mypy", "types-protobuf")
    expected = {n for n, line in enumerate((HERE / "typed.py").read_text().splitlines(), 1) if line.endswith("# an error")}
    said = environment.run("sh", "-c", f"mypy --cache-dir={tmp_path} {HERE / 'typed.py'} || true")
    assert {int(n) for n in re.findall(r"typed\.py:(\d+): error:", said)} == expected, said


def project_version() -> str:
    found = re.search(r"project\(lorry VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert found is not None
    return found[1]
