"""Lays out Kubernetes' JSON schemas for kubeconform, so that checking a chart needs no network.

The schemas come with the Python package kubernetes-validate. kubeconform wants a folder a release, references beside
the file that makes them, and no "$schema" line that it would try to fetch.

usage: kubernetes_schemas.py FOLDER RELEASE...        (RELEASE: 1.34)
"""

import pathlib
import re
import sys

import kubernetes_validate


def main(folder: str, releases: list[str]) -> None:
    package = pathlib.Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    for release in releases:
        source = package / f"v{release}.0-local-strict"
        target = pathlib.Path(folder) / f"v{release}.0-standalone-strict"
        target.mkdir(parents=True, exist_ok=True)
        for path in source.iterdir():
            text = path.read_text().replace('"/api/_definitions.json#', '"_definitions.json#')
            (target / path.name).write_text(re.sub(r'"\$schema": *"[^"]*",?', "", text, count=1))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
