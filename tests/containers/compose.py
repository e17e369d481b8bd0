"""deploy/compose.yaml, run: each of Lorry's services in a pod of its own on a `Node`, with the volumes and secrets that it names."""

from __future__ import annotations

import os
import pathlib
import re
import shutil

import yaml
from dockerfile import ROOT
from images import Image
from node import Container, Node, Pod
from sandbox import Mount

FILE = ROOT / "deploy" / "compose.yaml"


class Project:
    """`environment`: what the shell gives `docker compose`; `secrets`: the directory that the file's secrets lie in."""

    def __init__(self, node: Node, images: dict[str, Image], environment: dict[str, str], secrets: pathlib.Path) -> None:
        self.node, self.images = node, images
        text = re.sub(r"\$\{(\w+)(?::[-?]([^}]*))?\}", lambda m: environment.get(m[1], m[2]), FILE.read_text())
        self.spec = yaml.safe_load(text)
        self.folder, self.secrets = node.folder / "compose", secrets
        built = {name: service for name, service in self.spec["services"].items() if "build" in service}
        self.pods: dict[str, Pod] = {name: node.pod(name, [name]) for name in built}
        self.services = built

    def _volume(self, image: Image, source: str, target: str) -> pathlib.Path:
        """A named volume begins with what the image has at its place, owner included; a path is the machine's own."""
        if source.startswith("/"):
            raise AssertionError(f"{source} is a directory of the host, which docker makes for root")
        path = self.folder / source
        if not path.exists():
            path.mkdir(parents=True)
            options = (self.spec["volumes"][source] or {}).get("driver_opts", {})
            owner = re.search(r"uid=(\d+)", options.get("o", ""))
            if owner:
                os.chown(path, int(owner[1]), int(owner[1]))
            else:
                held = image.find(target).stat()
                os.chown(path, held.st_uid, held.st_gid)
        return path

    def container(self, name: str) -> Container:
        service = self.services[name]
        image = self.images[service["build"]["target"]]
        mounts = []
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            mounts.append(Mount(self._volume(image, source, target), target, "ro" in mode))
        for secret in service.get("secrets", []):
            path = self.secrets / pathlib.Path(self.spec["secrets"][secret]["file"]).name
            mounts.append(Mount(path, f"/run/secrets/{secret}", read_only=True))
        user = int(service["user"].split(":")[0])
        return Container(
            name, image, [*image.entrypoint, *service["command"]], mounts, service.get("environment", {}), user, (), service["read_only"],
            service["cap_drop"] == ["ALL"], default_profile=True,  # docker's own, where the file names no other
        )

    def start(self) -> None:
        """All at once; returns when every health check is content."""
        for name, pod in self.pods.items():
            pod.start(self.container(name))
        for name, pod in self.pods.items():
            test = self.services[name]["healthcheck"]["test"][-1]
            port, path = re.search(r"/dev/tcp/127\.0\.0\.1/(\d+)", test)[1], re.search(r"GET (\S+)", test)[1]
            pod.await_probe(name, int(port), path)

    def stop(self, name: str) -> None:
        """`docker compose stop`: SIGTERM, and no more time than the file gives the service."""
        seconds = int(self.services[name].get("stop_grace_period", "10s").removesuffix("s"))
        assert self.pods[name].processes[name].stop(seconds) == 0

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
