"""Makes the message classes lorry/{common,store,sync,engine,transfer}/v1/*_pb2*.py out of proto/. They are not kept in the tree.

usage: python clients/python/generate.py        into src/, for work in a checkout
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
# In a source distribution the messages lie beside this file, in a checkout two folders up.
PROTO = next(p for p in (HERE / "proto", HERE.parent.parent / "proto") if p.is_dir())


def generate(out: pathlib.Path) -> list[pathlib.Path]:
    """Runs protoc (of grpcio-tools) over every .proto file; returns what it made below `out`."""
    import grpc_tools
    from grpc_tools import protoc

    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    files = sorted(str(p.relative_to(PROTO)) for p in PROTO.glob("lorry/*/v1/*.proto"))
    out.mkdir(parents=True, exist_ok=True)
    arguments = [f"-I{PROTO}", f"-I{well_known}", f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
    if protoc.main(["protoc", *arguments, *files]) != 0:
        sys.exit("protoc failed")
    folders = {(out / f).parent for f in files}
    for package in folders | {f.parent for f in folders}:
        (package / "__init__.py").touch()
    return sorted(p for folder in folders for p in folder.parent.rglob("*.py*") if p.suffix in (".py", ".pyi"))


def floors(generated: list[pathlib.Path]) -> list[str]:
    """The oldest grpcio and protobuf that can import what was generated; newer generators write down their own."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in generated)
    protobuf = re.search(r"^# Protobuf Python Version: ([\d.]+)$", text, re.MULTILINE)
    grpc = re.search(r"^GRPC_GENERATED_VERSION = '([\d.]+)'$", text, re.MULTILINE)
    if protobuf is None:
        sys.exit("the generator does not say which protobuf its messages need")
    return [f"protobuf>={protobuf[1]}", f"grpcio>={grpc[1] if grpc else '1.60'}"]


if __name__ == "__main__":
    generate(HERE / "src")
