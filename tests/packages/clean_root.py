"""A root folder that holds Python and nothing else: what a stranger's container has. Used through unshare and chroot."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

# The C library's and the compiler's, which every distribution has and no wheel may bring.
OF_EVERY_SYSTEM = ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2",
                   "libanl.so.1", "libnss_files.so.2", "libnss_dns.so.2", "libstdc++.so.6", "libgcc_s.so.1"]


def make(root: pathlib.Path, environment: pathlib.Path) -> pathlib.Path:
    """Copies the Python that runs this, and a virtual environment made with it, to their own paths below `root`."""
    base = pathlib.Path(sys.base_prefix)
    library = base / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = pathlib.Path(os.path.realpath(sys.executable))
    skipped = shutil.ignore_patterns("site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__", "config-*")
    shutil.copytree(library, below(root, library), symlinks=True, ignore=skipped)
    shutil.copytree(environment, below(root, environment), symlinks=True)
    copy(root, interpreter)
    link = below(root, environment / "bin" / "python")
    link.unlink()
    link.symlink_to(interpreter)
    extensions = list(library.glob("lib-dynload/*.so"))
    for found in {p for binary in [interpreter, *extensions] for p in libraries(binary)}:
        copy(root, found)
    for found in host_libraries():
        if found.name in OF_EVERY_SYSTEM:
            copy(root, found)
    for folder in ("proc", "dev", "tmp", "root", "etc"):
        (root / folder).mkdir(exist_ok=True)
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    return root


def libraries(binary: pathlib.Path) -> set[pathlib.Path]:
    said = subprocess.run(["ldd", binary], text=True, capture_output=True, check=False).stdout
    return {pathlib.Path(m[1]) for m in re.finditer(r"(?:=> )?(/\S+) \(0x", said)}


def host_libraries() -> set[pathlib.Path]:
    said = subprocess.run(["ldconfig", "-p"], text=True, capture_output=True, check=True).stdout
    return {pathlib.Path(m[1]) for m in re.finditer(r"x86-64.* => (\S+)", said)}


def copy(root: pathlib.Path, file: pathlib.Path) -> None:
    target = below(root, file)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(file, target)


def below(root: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    return root / path.relative_to("/")


def run_inside(root: pathlib.Path, binds: list[pathlib.Path], *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that sees only `root`, /proc, /dev and the bound folders; on this machine's network."""
    for path in binds:
        below(root, path).mkdir(parents=True, exist_ok=True)
    mounts = "".join(f"mount --rbind {path} {below(root, path)} && " for path in [pathlib.Path("/dev"), *binds])
    script = f"mount --make-rprivate / && mount -t proc proc {root}/proc && {mounts}exec chroot {root} \"$@\""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", *as_root, "sh", "-c", script, "sh", *map(str, command)],
                          text=True, capture_output=True, timeout=240, check=False,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **variables})
