"""lorry, the programs with their libraries: `pip install lorry && lorry up` where there is only Python."""

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import zipfile

import clean_root
import pytest
from environments import ROOT, run
from testing import engines

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(os.environ.get("LORRY_BIN_DIR", "."))
GPU = "lorry_programs/lib/liblorry_gpu.so"
WITH_GPU = (BIN / "liblorry_gpu.so").exists()  # where CUDA's compiler was when this was built
# What every process may have of the host: its C library and its compiler's libraries.
OF_THE_HOST = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv|libanl|libstdc\+\+|libgcc_s|libnss_\w+)[.-].*")


def made(bin_dir, out) -> tuple[pathlib.Path, str]:
    """The wheel of the programs in a folder, and what else was said."""
    done = subprocess.run([sys.executable, ROOT / "packaging" / "build.py", "programs", "--bin-dir", bin_dir, "--out", out],
                          text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl")), done.stderr


@pytest.fixture(scope="module")
def wheels(built, tmp_path_factory):
    """Of the client, and of the programs that were built here."""
    out = tmp_path_factory.mktemp("programs")
    return [built["wheel"], made(BIN, out)[0]]


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
    missing = "on the GPU: no NVIDIA driver: libcuda.so.1: cannot open shared object file: No such file or directory"
    assert said["gpu"] == (missing if WITH_GPU else "no library")
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
        bundled = {pathlib.PurePosixPath(n).name for n in names if re.search(r"/lib/.*\.so", n) and n != GPU}
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


def test_what_packs_on_a_gpu_comes_along_and_holds_nothing_of_nvidias(wheels, tmp_path):
    """One library of ours: the kernels as machine code, and as PTX for GPUs that do not exist yet; the driver is looked for at run time."""
    archive = zipfile.ZipFile(wheels[1])
    assert (GPU in archive.namelist()) == WITH_GPU
    if not WITH_GPU:
        pytest.skip("built without CUDA")
    library = pathlib.Path(archive.extract(GPU, tmp_path))
    asked = set(re.findall(r"NEEDED +(\S+)", run(["objdump", "-p", library])))
    assert asked <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}, "no library of NVIDIA's, and not the trainer's C++ runtime"
    given = {line.split()[-1] for line in run(["nm", "--dynamic", "--defined-only", library]).splitlines()}
    assert given and all(name.startswith("lorry_gpu_") for name in given), "nothing that another library of the trainer's could take"
    assert b"cudart" not in library.read_bytes().lower()
    machine_code, ptx = kernels(library)
    assert 90 in machine_code and max(ptx) >= max(machine_code)


def kernels(library: pathlib.Path) -> tuple[set[int], set[int]]:
    """For which kinds of GPU (90: Hopper) there is machine code, and PTX."""
    content = library.read_bytes()
    at = content.index(struct.pack("<I", 0xBA55ED50))  # a fat binary: magic, version, the head's length, that of the rest
    head, rest = struct.unpack_from("<6xHQ", content, at)
    found, at, end = (set(), set()), at + head, at + head + rest
    while at < end:  # of each entry: 1 PTX or 2 machine code, the head's length, that of the rest, ..., the kind of GPU
        what, head, rest, kind = struct.unpack_from("<H2xIQ12xI", content, at)
        found[{2: 0, 1: 1}[what]].add(kind)
        at += head + rest
    return found


def test_a_build_without_cuda_is_packed_too_and_says_what_is_missing(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("lorry", "adapter-store", "sync-orchestrator", "engine-proxy"):
        (programs / name).symlink_to("/bin/true")  # which needs no library of Debian's, so that this is quick
    wheel, said = made(programs, tmp_path)
    assert GPU not in zipfile.ZipFile(wheel).namelist()
    assert "without liblorry_gpu.so" in said
