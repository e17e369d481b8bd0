"""The Helm chart's rendering, run: every pod of its StatefulSets and Deployments on a `Node`.

Of Kubernetes it does what the manifests ask for: volumes with their owners, secrets, the downward API, names of services,
the order of native sidecars, probes. What a manifest asks for and this does not know fails the test.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import subprocess
import time

import yaml
from dockerfile import ROOT
from images import Image
from node import Container, Node, Pod
from sandbox import Mount

CHART = ROOT / "helm" / "lorry"
HELM = ROOT / ".cache" / "tools" / "bin" / "helm"


def quantity(text: str) -> int:
    """Bytes, as Kubernetes writes them: "256Mi"."""
    number, unit = re.fullmatch(r"(\d+)(|[KMGT]i)", text).groups()
    return int(number) << 10 * ["", "Ki", "Mi", "Gi", "Ti"].index(unit)


def render(release: str, namespace: str, values: dict) -> list[dict]:
    done = subprocess.run(
        [HELM, "template", release, CHART, "--namespace", namespace, "--values", "-"],
        input=yaml.safe_dump(values), capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


class Release:
    """An installed chart. `secrets`: Secret → key → text, which somebody made in the namespace."""

    def __init__(
        self, node: Node, images: dict[str, Image], name: str, namespace: str, values: dict, secrets: dict[str, dict[str, str]]
    ) -> None:
        self.node, self.images, self.namespace, self.secrets = node, images, namespace, secrets
        self.objects = render(name, namespace, values)
        self.folder = node.folder / namespace / name
        self.pods: list[tuple[Pod, dict, dict]] = []
        for item in self.objects:
            if item["kind"] in ("StatefulSet", "Deployment"):
                for number in range(item["spec"]["replicas"]):
                    self._add_pod(item, number)

    def _add_pod(self, owner: dict, number: int) -> None:
        name = f"{owner['metadata']['name']}-{number}"
        labels = owner["spec"]["template"]["metadata"]["labels"]
        names = []
        for service in (item for item in self.objects if item["kind"] == "Service"):
            if service["spec"]["selector"].items() <= labels.items():
                short = service["metadata"]["name"]
                names += [f"{short}.{self.namespace}", f"{short}.{self.namespace}.svc"]
        pod = self.node.pod(name, names)
        self.pods.append((pod, owner["spec"]["template"]["spec"], self._volumes(pod, owner)))

    def _volumes(self, pod: Pod, owner: dict) -> dict[str, pathlib.Path]:
        """Volume → directory, owned as the kubelet leaves it."""
        spec = owner["spec"]["template"]["spec"]
        group = spec.get("securityContext", {}).get("fsGroup")
        found: dict[str, pathlib.Path] = {}
        claims = [{"name": c["metadata"]["name"], "claim": c} for c in owner["spec"].get("volumeClaimTemplates", [])]
        for volume in [*spec.get("volumes", []), *claims]:
            path = found[volume["name"]] = self.folder / pod.network / volume["name"]
            path.mkdir(parents=True)
            if "secret" in volume:
                for key, text in self.secrets[volume["secret"]["secretName"]].items():
                    (path / key).write_text(text)
                    (path / key).chmod(0o440 if group else 0o444)
            else:
                assert {"emptyDir", "claim"} & volume.keys(), f"a volume of a kind that is not known here: {volume}"
                path.chmod(0o777 if "emptyDir" in volume else 0o755)
                if volume.get("emptyDir", {}).get("medium") == "Memory":
                    subprocess.run(["mount", "-t", "tmpfs", "none", "-o", "size=64m,mode=777", path], check=True)
            if group:
                for part in [path, *path.iterdir()]:
                    subprocess.run(["chown", f":{group}", part], check=True)
                if "secret" not in volume:
                    subprocess.run(["chmod", "g+rwxs", path], check=True)
        return found

    def _container(self, pod: Pod, spec: dict, manifest: dict, volumes: dict[str, pathlib.Path]) -> Container:
        fields = {"metadata.name": pod.name, "status.podIP": str(pod.address), "metadata.namespace": self.namespace}
        environment = {
            entry["name"]: entry["value"] if "value" in entry else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            for entry in manifest.get("env", [])
        }
        security = {**spec.get("securityContext", {}), **manifest.get("securityContext", {})}
        name = re.fullmatch(r"lorry/([a-z-]+):\S+", manifest["image"])
        image = self.images[name[1]] if name else None
        words = [*manifest.get("command", image.entrypoint if image else []), *manifest.get("args", [])]
        group = spec.get("securityContext", {}).get("fsGroup")
        return Container(
            manifest["name"], image, [re.sub(r"\$\((\w+)\)", lambda m: environment[m[1]], str(word)) for word in words],
            [Mount(volumes[m["name"]], m["mountPath"], m.get("readOnly", False)) for m in manifest.get("volumeMounts", [])],
            environment, security.get("runAsUser", image.user if image else 0), (group,) if group else (),
            security.get("readOnlyRootFilesystem", False), security.get("capabilities") == {"drop": ["ALL"]},
            security.get("seccompProfile") == {"type": "RuntimeDefault"}, quantity(manifest.get("resources", {}).get("limits", {}).get("memory", "0")),
        )

    def start(self) -> None:
        """Pods side by side; in each the sidecars first, then the containers. Returns when every pod is ready."""
        for pod, spec, volumes in self.pods:
            for manifest in spec.get("initContainers", []):
                assert manifest.get("restartPolicy") == "Always", "an init container that is no sidecar"
                pod.start(self._container(pod, spec, manifest, volumes))
        for pod, spec, volumes in self.pods:
            for manifest in spec.get("initContainers", []):
                self._await(pod, manifest, "startupProbe")
            for manifest in spec["containers"]:
                pod.start(self._container(pod, spec, manifest, volumes))
        for probe in ("startupProbe", "readinessProbe"):
            for pod, spec, _ in self.pods:
                for manifest in [*spec.get("initContainers", []), *spec["containers"]]:
                    self._await(pod, manifest, probe)

    def _await(self, pod: Pod, manifest: dict, probe: str) -> None:
        get = manifest.get(probe, {}).get("httpGet")
        if get is None:
            return  # asked inside the container; its proxy's readiness waits for it
        ports = {port["name"]: port["containerPort"] for port in manifest["ports"]}
        pod.await_probe(manifest["name"], ports.get(get["port"], get["port"]), get["path"])

    def delete(self, name: str) -> dict[str, int]:
        """Ends a pod as a kubelet does: every preStop hook at once; SIGTERM to a container whose hook has ended, to sidecars once the
        others have; SIGKILL when the grace period is over. Container → exit status."""
        ((pod, spec, _),) = [entry for entry in self.pods if entry[0].name == name]
        self.pods = [entry for entry in self.pods if entry[0].name != name]
        end = time.monotonic() + spec["terminationGracePeriodSeconds"]
        manifests = [*spec["containers"], *reversed(spec.get("initContainers", []))]
        hooks = {
            m["name"]: pod.processes[m["name"]].exec(m["lifecycle"]["preStop"]["exec"]["command"])
            for m in manifests if "lifecycle" in m
        }
        statuses = {}
        for container in [m["name"] for m in manifests]:
            if container in hooks:
                _, said = hooks[container].communicate(timeout=end - time.monotonic())
                assert hooks[container].returncode == 0, f"the hook of {container}: {said}"
            statuses[container] = pod.processes[container].stop(end - time.monotonic())
        return statuses

    def scale_down(self) -> None:
        """Ends every pod with a sidecar, while the services that it says goodbye to run."""
        for name in [pod.name for pod, spec, _ in self.pods if "initContainers" in spec]:
            assert set(self.delete(name).values()) == {0}

    def cli(self, name: str, *words: str, user: int | None = None, role: str = "operator") -> subprocess.CompletedProcess[str]:
        """The pod of `helm test`, under `name` and with other words for its verb where some are given, run to its end; as another user
        of the cluster would run it, with a token of their role."""
        (item,) = [i for i in self.objects if i["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"]
        pod = self.node.pod(name, [])
        owner = {"metadata": item["metadata"], "spec": {"template": item}}
        (manifest,) = item["spec"]["containers"]
        arguments = [word.replace("/auth/operator", f"/auth/{role}") for word in manifest["args"]]
        manifest = {**manifest, "args": [*(words or arguments[:1]), *arguments[1:]]}
        container = self._container(pod, item["spec"], manifest, self._volumes(pod, owner))
        return pod.run(container if user is None else dataclasses.replace(container, user=user))


def tokens(folder: pathlib.Path) -> dict[str, str]:
    """What `deploy/make-tokens` writes, as the Secret that is made of it."""
    subprocess.run([ROOT / "deploy" / "make-tokens", folder], check=True)
    return {path.name: path.read_text() for path in folder.iterdir()}
