"""What the chart renders, as objects: for the tests of this folder."""

import pathlib
import subprocess

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/lorry"
VALUES = sorted((CHART / "ci").glob("*.yaml"))
SERVICES = {
    "adapter-store": ROOT / "services/adapter_store",
    "sync-orchestrator": ROOT / "services/sync_orchestrator",
    "engine-proxy": ROOT / "services/engine_proxy",
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def render(*arguments: str, name: str = "release", namespace: str = "fleet") -> str:
    done = run("helm", "template", name, str(CHART), "--namespace", namespace, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(*arguments: str, **release: str) -> list[dict]:
    return [item for item in yaml.safe_load_all(render(*arguments, **release)) if item]


def pod_templates(items: list[dict]) -> list[dict]:
    of_nodes = [item["spec"]["leaderWorkerTemplate"] for item in items if item["kind"] == "LeaderWorkerSet"]
    return [item["spec"]["template"] for item in items if item["kind"] in ("StatefulSet", "Deployment")] + [
        group[which] for group in of_nodes for which in ("leaderTemplate", "workerTemplate")]


def pod_specs(items: list[dict]) -> list[dict]:
    return [template["spec"] for template in pod_templates(items)]


def lorry_containers_of(template: dict) -> list[dict]:
    pod = template["spec"]
    return [container for container in pod.get("initContainers", []) + pod["containers"] if container["name"] in SERVICES]


def lorry_containers(items: list[dict]) -> list[dict]:
    return [container for template in pod_templates(items) for container in lorry_containers_of(template)]


def policies_of(items: list[dict]) -> list[dict]:
    return [item["spec"] for item in items if item["kind"] == "NetworkPolicy"]


# Policies that admit nobody by the namespace alone.
NARROWED = ("--set", "networkPolicy.enabled=true", *(word for whom in ("clients", "monitoring") for word in (
    "--set", f"networkPolicy.{whom}[0].namespaceSelector.matchLabels.team=rl")))


def admits(policy: dict, labels: dict[str, str], port: int, same_namespace: bool = True) -> bool:
    """Whether a rule that names the port lets a pod with these labels come, whatever labels its namespace has."""
    return any({"protocol": "TCP", "port": port} in rule.get("ports", []) and
               any((same_namespace or "namespaceSelector" in peer) and not (peer.get("namespaceSelector") or {}) and
                   peer.get("podSelector", {}).get("matchLabels", {}).items() <= labels.items() for peer in rule["from"])
               for rule in policy["ingress"])
