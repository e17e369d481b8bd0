"""Copies programs and the Debian libraries that they use into a folder that runs on other distributions.

    OUT/bin/    the programs, which look for their libraries beside themselves
    OUT/lib/    the libraries; lib/ucx/ the modules that UCX loads at run time, which it finds beside its own libucs

The C library and those of the compiler are never copied: a process can have one of each, and the host's is the newer one.
"""

from __future__ import annotations

import pathlib
import re
import subprocess

# Of the host: the C library, the compiler's, and the drivers of its RDMA cards, which must fit its kernel. A UCX module that
# needs a driver which is not there is not loaded, and UCX goes on without it.
HOSTS = re.compile(r"(ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|libutil|libanl|libstdc\+\+|libgcc_s|libibverbs|"
                   r"librdmacm|libmlx[45]|libnl-3|libnl-route-3)\.so.*")
UCX_MODULES = "ucx"


def bundle(programs: list[pathlib.Path], out: pathlib.Path) -> list[pathlib.Path]:
    """Fills `out`; returns the files that were copied from the system."""
    libraries = sorted({library for program in programs for library in needed(program)})
    modules = [m for library in libraries if library.name.startswith("libucs.") for m in modules_of(library)]
    own = {library for module in modules for library in needed(module)} - set(libraries)
    for program in programs:
        place(program, out / "bin", "$ORIGIN/../lib")
    for library in [*libraries, *sorted(own - set(modules))]:
        place(library, out / "lib", "$ORIGIN")
    for module in modules:
        place(module, out / "lib" / UCX_MODULES, "$ORIGIN/..:$ORIGIN")
    return [*libraries, *sorted(own - set(modules)), *modules]


def needed(binary: pathlib.Path) -> set[pathlib.Path]:
    """Every library that the loader takes for a binary here and that goes with it, under the name it is asked for by."""
    said = run("ldd", binary)
    if "not found" in said:
        raise SystemExit(f"{binary} lacks libraries here:\n{said}")
    paths = {pathlib.Path(m[1]) for m in re.finditer(r"=> (\S+) \(", said)}
    return {p for p in paths if not HOSTS.fullmatch(p.name)}


def modules_of(libucs: pathlib.Path) -> list[pathlib.Path]:
    """UCX names them by its own version suffix: libuct_cma.so.0 for libucs.so.0."""
    suffix = libucs.name.removeprefix("libucs")
    return sorted((libucs.resolve().parent / UCX_MODULES).glob(f"*{suffix}"))


def place(source: pathlib.Path, folder: pathlib.Path, search: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / source.name
    run("strip", "--strip-unneeded", "-o", target, source.resolve())
    # DT_RPATH goes before LD_LIBRARY_PATH, which may name another build of the same library.
    run("patchelf", "--force-rpath", "--set-rpath", search, target)
    target.chmod(0o755)


def place_alone(source: pathlib.Path, folder: pathlib.Path) -> None:
    """A library of ours that is loaded into other programs, and so may need nothing but the C library."""
    allowed = re.compile(r"(ld-linux.*|libc|libm)\.so.*")
    asked = re.findall(r"NEEDED +(\S+)", run("objdump", "-p", source))
    if foreign := [name for name in asked if not allowed.fullmatch(name)]:
        raise SystemExit(f"{source} links {', '.join(foreign)}: its own licence would not be enough, nor would every host have it")
    folder.mkdir(parents=True, exist_ok=True)
    run("strip", "--strip-unneeded", "-o", folder / source.name, source)


def platform_tag(out: pathlib.Path) -> str:
    """The oldest systems on which all of `out` runs, as wheels name them: what it asks of glibc and libstdc++."""
    glibc, libstdcxx = 0, 0
    for binary in out.rglob("*"):
        if binary.is_file():
            undefined = "\n".join(line for line in run("objdump", "-T", binary).splitlines() if "*UND*" in line)
            glibc = max([glibc, *(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", undefined))])
            libstdcxx = max([libstdcxx, *(int(patch) for patch in re.findall(r"GLIBCXX_3\.4\.(\d+)", undefined))])
    if libstdcxx > 30:
        raise SystemExit(f"GLIBCXX_3.4.{libstdcxx} is newer than GCC 12's: build on Debian 12")
    if libstdcxx == 30:
        glibc = max(glibc, 35)  # GCC 12's libstdc++; no distribution with an older glibc than Ubuntu 22.04 ships it
    machine = run("uname", "-m").strip()
    return f"manylinux_2_{max(glibc, 17)}_{machine}"


def run(*command: object) -> str:
    return subprocess.run([str(c) for c in command], check=True, text=True, capture_output=True).stdout
