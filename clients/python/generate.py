"""Generates lorry/{common,store,sync,engine,transfer}/v1/*_pb2*.py into src/. They are not kept in the tree.

usage: python clients/python/generate.py
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
PROTO = HERE.parent.parent / "proto"


def generate() -> None:
    """Runs protoc (of grpcio-tools) over every .proto below ../../proto."""
    import grpc_tools
    from grpc_tools import protoc

    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    files = sorted(str(p.relative_to(PROTO)) for p in PROTO.glob("lorry/*/v1/*.proto"))
    out = HERE / "src"
    arguments = [f"-I{PROTO}", f"-I{well_known}", f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
    if protoc.main(["protoc", *arguments, *files]) != 0:
        sys.exit("protoc failed")
    for folder in {(out / f).parent for f in files}:
        for package in (folder, folder.parent):
            (package / "__init__.py").touch()


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    generate()
