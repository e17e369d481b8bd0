"""lorry and lorry-dev, the Debian packages: unpacked, run, and built against by another project."""

import json
import os
import pathlib
import shutil

import clean_root
import pytest
from environments import run
from testing import debian
from testing.engines import tiny_model

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("LORRY_BIN_DIR", ".")).parent


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Name → file, of what cpack makes out of this build."""
    out = tmp_path_factory.mktemp("deb")
    run(["cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", out], cwd=out)
    return {path.name.split("_")[0]: path for path in out.glob("*.deb")}


@pytest.fixture(scope="module")
def unpacked(packages, tmp_path_factory):
    """Both packages' files below one folder, as below / once they are installed."""
    out = tmp_path_factory.mktemp("root")
    for package in packages.values():
        run(["dpkg-deb", "--extract", package, out])
    return out


def test_they_depend_on_what_they_link(packages):
    assert set(packages) == {"lorry", "lorry-dev"}
    depends = run(["dpkg-deb", "--field", packages["lorry"], "Depends"])
    for library in ("libgrpc++1.51", "libucx0", "libsqlite3-0", "libc6", "libstdc++6"):
        assert library in depends
    assert "libgrpc++-dev" in run(["dpkg-deb", "--field", packages["lorry-dev"], "Depends"])


def test_the_programs_run_from_where_they_are_installed(unpacked):
    for program in ("adapter-store", "sync-orchestrator", "engine-proxy"):
        run([unpacked / "usr" / "bin" / program, "--version"])
    assert "0.1.0" in run([unpacked / "usr" / "bin" / "lorry", "--version"])


def test_what_it_depends_on_is_enough(packages, tmp_path):
    """dpkg installs it where there is what it asks for and nothing else, and there the programs run."""
    root = tmp_path / "root"
    root.mkdir()
    asked = run(["dpkg-deb", "--field", packages["lorry"], "Depends"]).split(",")
    debian.make_root([debian.chosen(alternatives) for alternatives in asked], root)
    for folder in ("info", "updates"):
        (root / "var/lib/dpkg" / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy("/var/lib/dpkg/status", root / "var/lib/dpkg/status")  # so that dpkg compares versions
    run(["dpkg", f"--root={root}", "--install", packages["lorry"]])
    for program in ("lorry", "adapter-store", "sync-orchestrator", "engine-proxy"):
        done = clean_root.run_inside(root, [], program, "--version")
        assert (done.returncode, "0.1.0" in done.stdout) == (0, True), done.stderr


def test_they_say_whose_work_they_hold(unpacked):
    for package in ("lorry", "lorry-dev"):
        folder = unpacked / "usr" / "share" / "doc" / package
        assert "Apache License" in (folder / "copyright").read_text()
        bill = json.loads((folder / "sbom.cdx.json").read_text())
        assert "libgrpc++1.51" in {c["name"] for c in bill["components"]}


def test_another_project_builds_against_the_client(unpacked, store, tmp_path):
    shutil.copy(HERE / "outsider.cmake", tmp_path / "CMakeLists.txt")
    shutil.copy(HERE / "outsider.cc.in", tmp_path / "main.cc")
    build = tmp_path / "build"
    run(["cmake", "-G", "Ninja", "-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={unpacked / 'usr'}",
         "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"])
    run(["cmake", "--build", build])
    assert "sha256-xxh3:" in run([build / "outsider", store, tiny_model() / "adapters" / "v1"])
