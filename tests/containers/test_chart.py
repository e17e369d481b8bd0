"""The chart as it renders: pods on networks of their own serve what a trainer on a third publishes."""

import pytest
from chart import Release, tokens
from conftest import CLIENT, TESTS
from node import Trainer
from testing.early import HEADER_BYTES, padded
from testing.metrics import samples, sent
from values import fake_vllm, make_certificates

VARIANTS = {
    "tokens in clear": {},
    # Of two proxies one reads the image from the store, and the other from it; a later one while it is still sent.
    "certificates, tokens and a relay": {
        "tls": {"enabled": True, "existingSecret": "tls"}, "proxy": {"relays": {"enabled": True}},
        "store": {"extraArgs": ["--relay-width=1"]},
    },
    "IPv6 alone": {},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_published_version_is_served(variant, images, make_node, tiny, judge):
    node = make_node("ipv6" if "IPv6" in variant else "ipv4")
    secrets = {"lorry-tokens": tokens(node.folder / "tokens")}
    credentials = {"token": secrets["lorry-tokens"]["publisher"]}
    if "certificates" in variant:
        made = make_certificates(node.folder / "pem", ["lorry-store.fleet.svc", "lorry-orchestrator.fleet.svc", "lorry-proxy.fleet.svc"])
        secrets["tls"] = made["programs"]
        credentials |= {name: str(node.folder / "pem" / file) for name, file in CLIENT.items()}
    values = {"engine": fake_vllm(tiny / "model"), **VARIANTS[variant]}
    release = Release(node, images, "lorry", "fleet", values, secrets)
    release.start()

    trainer = Trainer(node, f"{TESTS.parent}/clients/python/src:{TESTS}", {
        "LORRY_STORE": "lorry-store.fleet.svc:7400", "LORRY_ORCHESTRATOR": "lorry-orchestrator.fleet.svc:7410",
    })
    answers = trainer.publish(tiny / "adapters" / "v1", 1, credentials)
    assert len(answers) == 2, answers
    for door, answer in answers.items():
        judge(answer, tiny / "adapters" / "v1", 1)
        assert "127.0.0.1" not in door and "0.0.0.0" not in door, door

    if "relay" in variant:
        size = (tiny / "adapters" / "v1" / "adapter_model.safetensors").stat().st_size
        (store,) = [pod for pod, _, _ in release.pods if "store" in pod.name]
        proxies = [pod for pod, spec, _ in release.pods if "initContainers" in spec]
        assert sent(store.metrics(7401), "grpc") == size
        assert sum(sent(pod.metrics(7422), "relay") for pod in proxies) == size
        first, second = (padded(tiny / "adapters" / name, node.folder / name) for name in ("v1", "v2"))
        read_ahead = {"after": str(first), "store": store.url(7401, "/metrics")}
        for answer in trainer.publish(second, 3, credentials, read_ahead=read_ahead).values():
            judge(answer, second, 3)
        ahead = [n for pod in proxies for n in samples(pod.metrics(7422), 'lorry_proxy_fetch_bytes_total{transport="ahead"')]
        assert sum(ahead) >= HEADER_BYTES

    doctor = release.cli("doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "✗" not in doctor.stdout, doctor.stdout
    asked = next(iter(answers.values()))["headers"]["x-lorry-request-id"]
    why = release.cli("why", "why", asked)
    assert why.returncode == 0 and "policy" in why.stdout, why.stdout + why.stderr
    release.scale_down()
    assert set(node.stop().values()) == {0}
