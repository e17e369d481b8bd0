"""Whose work is in a package: licence notices, and a bill of materials as CycloneDX JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import subprocess
import uuid

# Compiled into the programs, so that no library file shows it.
HEADERS_ONLY = ["libboost1.81-dev", "nlohmann-json3-dev"]


@dataclasses.dataclass(frozen=True)
class Component:
    name: str
    version: str
    purl: str
    copyright: pathlib.Path | None = None
    sha256: tuple[tuple[str, str], ...] = ()  # file name, digest of the file that was taken


def debian(files: list[pathlib.Path], packages: list[str] | None = None) -> list[Component]:
    """The Debian packages that files of this system, and the named ones, come from."""
    owners: dict[str, list[pathlib.Path]] = {name: [] for name in packages or []}
    for file in files:
        owners.setdefault(_owner(file), []).append(file)
    out = []
    for name, taken in sorted(owners.items()):
        version, machine = _query("dpkg-query", "-W", "-f=${Version} ${Architecture}", name).split()
        hashes = tuple((f.name, hashlib.sha256(f.read_bytes()).hexdigest()) for f in sorted(taken))
        out.append(Component(name, version, f"pkg:deb/debian/{name}@{version}?arch={machine}",
                             pathlib.Path("/usr/share/doc", name, "copyright"), hashes))
    return out


def bill_of_materials(package: str, version: str, components: list[Component]) -> str:
    """CycloneDX 1.5. The same content has the same serial number."""
    listed = [
        {"type": "library", "bom-ref": c.purl, "name": c.name, "purl": c.purl, **({"version": c.version} if c.version else {}),
         **({"components": [{"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}
                            for name, digest in c.sha256]} if c.sha256 else {})}
        for c in components
    ]
    about = {"type": "application", "bom-ref": package, "name": package, "version": version,
             "licenses": [{"license": {"id": "Apache-2.0"}}]}
    content = {"metadata": {"component": about}, "components": listed,
               "dependencies": [{"ref": package, "dependsOn": [c.purl for c in components]}]}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1}
    return json.dumps(head | content, indent=1) + "\n"


def licence_texts(components: list[Component]) -> dict[str, bytes]:
    """File name → text of every component that brings one."""
    return {f"{c.name}.copyright": c.copyright.read_bytes() for c in components if c.copyright is not None}


def _owner(file: pathlib.Path) -> str:
    # Debian's database knows /usr/lib, the loader says /lib, which is the same folder.
    path = file.resolve()
    for known in (path, pathlib.Path(str(path).removeprefix("/usr"))):
        found = subprocess.run(["dpkg", "-S", known], text=True, capture_output=True, check=False).stdout
        if found:
            return found.split(":")[0]
    raise SystemExit(f"{file} belongs to no Debian package: its licence is not known")


def _query(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout
