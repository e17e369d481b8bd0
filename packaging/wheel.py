"""Writes wheels: the files given, and the record of them that installers check."""

from __future__ import annotations

import base64
import hashlib
import pathlib
import stat
import zipfile

# Zip cannot say less than 1980; with one time for all files the same content gives the same wheel.
_TIME = (1980, 1, 1, 0, 0, 0)


def write(out: pathlib.Path, files: dict[str, bytes], info: str, executable: set[str] = frozenset()) -> pathlib.Path:
    """`files`: name in the wheel → content; `info`: the .dist-info folder's name, which gets the RECORD."""
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in sorted(files.items()))
    record += f"{info}/RECORD,,\n"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in [*sorted(files.items()), (f"{info}/RECORD", record.encode())]:
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            # pip lets only what is said to be a regular file be executed.
            entry.external_attr = (stat.S_IFREG | (0o755 if name in executable else 0o644)) << 16
            archive.writestr(entry, content)
    return out


def read(wheel: pathlib.Path) -> tuple[dict[str, bytes], str]:
    """The files of a wheel without its RECORD, and its .dist-info folder."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    del files[record]
    return files, record.removesuffix("/RECORD")


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
