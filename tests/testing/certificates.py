"""Certificates for tests, made with openssl: an authority, a server's, a client's with a role."""

from __future__ import annotations

import pathlib
import subprocess

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def authority(folder: pathlib.Path) -> pathlib.Path:
    """Makes `ca.pem`; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    ca = folder / "ca.pem"
    _openssl("req", "-x509", *_KEY, "-subj", "/CN=test authority", "-keyout", folder / "ca.key", "-out", ca)
    return ca


def signed(ca: pathlib.Path, name: str, names: str, days: int = 2) -> tuple[pathlib.Path, pathlib.Path]:
    """A certificate for `names` ("DNS:localhost,IP:127.0.0.1") and its key; with a negative number of days it has expired."""
    cert, key, request, extensions = (ca.parent / f"{name}.{kind}" for kind in ("pem", "key", "csr", "ext"))
    extensions.write_text(f"subjectAltName={names}")
    _openssl("req", *_KEY[:-2], "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    _openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca.with_suffix(".key"), "-CAcreateserial", "-days", days,
             "-extfile", extensions, "-out", cert)
    return cert, key
