"""lorry, the programs with their libraries: `pip install lorry && lorry up` where there is only Python."""

import json
import os
import pathlib
import re
import shutil
import sys
import zipfile

import clean_root
import pytest
from environments import ROOT, run
from testing import engines

HERE = pathlib.Path(__file__).resolve().parent
# What every process may have of the host: its C library and its compiler's libraries.
OF_THE_HOST = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv|libanl|libstdc\+\+|libgcc_s|libnss_\w+)[.-].*")


@pytest.fixture(scope="module")
def wheels(built, tmp_path_factory):
    """Of the client, and of the programs that were built here."""
    out = tmp_path_factory.mktemp("programs")
    run([sys.executable, ROOT / "packaging" / "build.py", "programs", "--bin-dir", os.environ["LORRY_BIN_DIR"], "--out", out])
    return [built["wheel"], next(out.glob("*.whl"))]


@pytest.fixture(scope="module")
def environment(wheels, make_environment):
    made = make_environment("programs")
    made.install(*wheels)
    return made


@pytest.fixture
def engine(tmp_path):
    made = engines.fake("vllm", engines.tiny_model() / "model", log_dir=tmp_path)
    with engines.running(made):
        yield made


def test_a_version_is_served_where_there_is_only_python(environment, engine, tmp_path):
    root = clean_root.make(tmp_path / "root", environment.folder)
    scripts = environment.folder / "bin"
    done = clean_root.run_inside(root, [HERE, engines.tiny_model()], scripts / "python", HERE / "inside.py", scripts, engine.url,
                                 engines.tiny_model() / "adapters" / "v1")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    for member in said["engines"]:  # /dev/shm is shared, so that the engine outside reads the images; in there everybody is root
        shutil.rmtree(pathlib.Path("/dev/shm/lorry-0", member["member"]), ignore_errors=True)
    assert said["active"] == 1
    assert set(said["mapped"]) == {"lorry", "adapter-store", "sync-orchestrator", "engine-proxy"}
    for program, files in said["mapped"].items():
        foreign = [f for f in files if "lorry_programs" not in f and not OF_THE_HOST.fullmatch(pathlib.Path(f).name)]
        assert not foreign, f"{program} uses what did not come along: {foreign}"
    assert any("/lib/ucx/libuct_cma" in f for f in said["mapped"]["adapter-store"]), "UCX found the modules that came along"


def test_pip_installs_programs_that_run(wheels, make_environment):
    environment = make_environment("programs-by-pip")
    environment.run(environment.python, "-m", "pip", "install", "--quiet", *wheels)
    assert "0.1.0" in environment.run("lorry", "--version")
    for program in ("adapter-store", "sync-orchestrator", "engine-proxy"):
        environment.run(program, "--version")


def test_the_wheels_say_whose_work_they_hold(wheels):
    for path in wheels:
        archive = zipfile.ZipFile(path)
        names = archive.namelist()
        bill = json.loads(archive.read(next(n for n in names if n.endswith(".dist-info/sboms/sbom.cdx.json"))))
        assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", "0.1.0")
        licences = {pathlib.PurePosixPath(n).name for n in names if ".dist-info/licenses/" in n}
        assert "LICENSE" in licences
        listed = {f["name"] for c in bill["components"] for f in c.get("components", [])}
        bundled = {pathlib.PurePosixPath(n).name for n in names if re.search(r"/lib/.*\.so", n)}
        assert bundled == listed
        for component in bill["components"]:
            assert component["purl"].startswith(("pkg:deb/debian/", "pkg:pypi/"))
            if component["purl"].startswith("pkg:deb"):
                assert f"{component['name']}.copyright" in licences


def test_the_programs_ask_for_no_newer_system_than_the_wheel_says(wheels):
    programs = wheels[1]
    assert re.search(r"-py3-none-manylinux_2_3[45]_x86_64\.whl$", programs.name)
    names = zipfile.ZipFile(programs).namelist()
    assert not [n for n in names if re.search(r"lib(stdc\+\+|gcc_s|c|m)\.so", n)]
