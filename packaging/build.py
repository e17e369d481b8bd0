"""Makes the Python packages of a release, and the notices of the Debian ones.

    packaging/build.py client --out dist                        lorry-client: source distribution and wheel, pure Python
    packaging/build.py programs --bin-dir build/release/bin --out dist       lorry: the programs and their libraries
    packaging/build.py notices --bin-dir build/release/bin --out DIR         licences and bill of materials of the programs alone

Needs uv or pip's `build` for the first; ldd, strip, patchelf, objdump and dpkg (Debian 12) for the second.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

import bundle  # noqa: E402
import notices  # noqa: E402
import wheel  # noqa: E402

PROGRAMS = ["lorry", "adapter-store", "sync-orchestrator", "engine-proxy"]
GPU = "liblorry_gpu.so"  # what trainers pack with on a GPU; of a build that had CUDA's compiler
PACKAGE = "lorry_programs"
BILL = "sboms/sbom.cdx.json"  # in .dist-info, where installers and scanners look for it


def client(out: pathlib.Path, sources: pathlib.Path) -> list[pathlib.Path]:
    """Builds the source distribution, the wheel from it, and adds its bill of materials."""
    uv = ROOT / ".venv" / "uv" / "bin" / "uv"
    command = [uv, "build", "--quiet", "--out-dir", out] if uv.exists() else [sys.executable, "-m", "build", "--outdir", out]
    forget(out, "lorry_client-*")
    subprocess.run([*command, sources], check=True)
    made = next(out.glob("lorry_client-*.whl"))
    files, info = wheel.read(made)
    metadata = files[f"{info}/METADATA"].decode()
    names = [re.split(r"[^\w.-]", line.removeprefix("Requires-Dist: "))[0]
             for line in metadata.splitlines() if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    components = [notices.Component(n, "", f"pkg:pypi/{n}") for n in names]
    files[f"{info}/{BILL}"] = notices.bill_of_materials("lorry-client", version(), components).encode()
    return [wheel.write(made, files, info), *out.glob("lorry_client-*.tar.gz")]


def forget(out: pathlib.Path, what: str) -> None:
    """Of older versions, one of which would be taken for what is made now; and `pip install *.whl` refuses two of one package."""
    for old in out.glob(what):
        old.unlink()


def programs(out: pathlib.Path, bin_dir: pathlib.Path) -> pathlib.Path:
    """The programs with their libraries, as a wheel that needs nothing of Debian."""
    out.mkdir(parents=True, exist_ok=True)
    forget(out, "lorry-*.whl")
    info = f"lorry-{version()}.dist-info"
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch, PACKAGE)
        taken = bundle.bundle([bin_dir / name for name in PROGRAMS], tree)
        if (bin_dir / GPU).exists():
            bundle.place_alone(bin_dir / GPU, tree / "lib")
        else:
            print(f"without {GPU}: {bin_dir} has none, as no compiler for CUDA 13 was found (tools/setup cuda). Trainers will copy "
                  "adapters from a GPU tensor by tensor.", file=sys.stderr)
        tag = f"py3-none-{bundle.platform_tag(tree)}"
        (tree / "__init__.py").write_bytes((HERE / PACKAGE / "__init__.py").read_bytes())
        files = {f"{PACKAGE}/{f.relative_to(tree)}": f.read_bytes() for f in sorted(tree.rglob("*")) if f.is_file()}
    executable = {name for name in files if "/bin/" in name}
    components = notices.debian(taken, notices.HEADERS_ONLY)
    texts = {"LICENSE": (ROOT / "LICENSE").read_bytes(), **notices.licence_texts(components)}
    files |= {f"{info}/licenses/{name}": text for name, text in texts.items()}
    files[f"{info}/{BILL}"] = notices.bill_of_materials("lorry", version(), components).encode()
    files[f"{info}/METADATA"] = metadata(sorted(texts)).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: lorry\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    entries = "".join(f"{name} = {PACKAGE}:main\n" for name in PROGRAMS)
    files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{entries}".encode()
    return wheel.write(out / f"lorry-{version()}-{tag}.whl", files, info, executable)


def notices_of(out: pathlib.Path, bin_dir: pathlib.Path) -> list[pathlib.Path]:
    """For packages whose libraries are Debian's own: what they link, and the licences of what is compiled in."""
    out.mkdir(parents=True, exist_ok=True)
    linked = sorted({library for name in PROGRAMS for library in bundle.needed(bin_dir / name)})
    components = notices.debian(linked, notices.HEADERS_ONLY)
    compiled_in = [c for c in components if c.name in notices.HEADERS_ONLY]
    texts = [(ROOT / "LICENSE").read_bytes(), *notices.licence_texts(compiled_in).values()]
    (out / "copyright").write_bytes(b"\n\n".join(texts))
    (out / "sbom.cdx.json").write_text(notices.bill_of_materials("lorry", version(), components), encoding="utf-8")
    return [out / "copyright", out / "sbom.cdx.json"]


def metadata(licences: list[str]) -> str:
    heads = [
        "Metadata-Version: 2.4", "Name: lorry", f"Version: {version()}",
        "Summary: Fresh LoRA adapters from trainers to inference engines: the services and the command line.",
        "License-Expression: Apache-2.0", *(f"License-File: {name}" for name in licences),
        "Requires-Python: >=3.10", f"Requires-Dist: lorry-client=={version()}", "Description-Content-Type: text/markdown",
    ]
    return "\n".join(heads) + "\n\n" + (HERE / PACKAGE / "README.md").read_text(encoding="utf-8")


def version() -> str:
    found = re.search(r"^project\(lorry VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["client", "programs", "notices"])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--bin-dir", type=pathlib.Path)
    parser.add_argument("--sources", type=pathlib.Path, default=ROOT / "clients" / "python", help="of the client")
    arguments = parser.parse_args()
    if arguments.what == "client":
        made = client(arguments.out, arguments.sources)
    elif arguments.bin_dir is None:
        parser.error(f"{arguments.what} needs --bin-dir")
    elif arguments.what == "notices":
        made = notices_of(arguments.out, arguments.bin_dir)
    else:
        made = [programs(arguments.out, arguments.bin_dir)]
    print(*made, sep="\n")


if __name__ == "__main__":
    main()
