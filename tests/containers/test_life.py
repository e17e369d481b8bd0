"""A fleet's life as the chart renders it, with certificates and IPv6 alone: what its users do, who lives beside it, and how a pod ends."""

from __future__ import annotations

import dataclasses
import http.client
import json
import urllib.parse

import pytest
from chart import Release, tokens
from conftest import CLIENT, TESTS
from engine_core import expected_logprobs
from node import Node, Trainer
from testing.doors import PROMPT
from testing.waiting import DEADLINE_S, until
from values import fake_vllm, make_certificates

PROMPTS = [[1, 40, 90, 40, 130], [7, 9, 11]]
TOKEN_DELAY_S = 0.02
# Three times what the fake gives a request that runs when it is told to end, and far below what the proxy gives it.
TOKENS_OF_SECONDS = 150
DRAIN_S = 10
TOKENS_WITHOUT_END = 100_000
# Of a person's pod: a user that no image knows.
SOMEBODY = 4321


@dataclasses.dataclass
class Installed:
    release: Release
    trainer: Trainer
    credentials: dict[str, str]

    def doors(self) -> dict[str, str]:
        """Member → address of its door, of those that are on the roster."""
        done = self.release.cli("status", "status", "--json")
        assert done.returncode == 0, done.stderr
        return {member["member"]: member["door_address"] for member in json.loads(done.stdout).get("members", [])}


def install(node, images, tiny, name, namespace, values, secrets, credentials) -> Installed:
    release = Release(node, images, name, namespace, values, secrets)
    release.start()
    trainer = Trainer(node, f"{TESTS.parent}/clients/python/src:{TESTS}", {
        "LORRY_STORE": f"lorry-store.{namespace}.svc:7400", "LORRY_ORCHESTRATOR": f"lorry-orchestrator.{namespace}.svc:7410",
    })
    return Installed(release, trainer, credentials)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    folder = tmp_path_factory.mktemp("life")
    for part in (folder, folder.parent):
        part.chmod(0o755)
    made = Node(folder, "ipv6")
    yield made
    made.print_logs()
    made.close()


@pytest.fixture(scope="module")
def fleet(node, images, tiny):
    names = ["lorry-store.fleet.svc", "lorry-orchestrator.fleet.svc", "lorry-proxy.fleet.svc"]
    made = make_certificates(node.folder / "pem", names)
    secrets = {"lorry-tokens": tokens(node.folder / "tokens"), "tls": made["programs"]}
    credentials = {name: str(node.folder / "pem" / file) for name, file in CLIENT.items()}
    credentials["token"] = secrets["lorry-tokens"]["publisher"]
    values = {"engine": fake_vllm(tiny / "model", token_delay_s=TOKEN_DELAY_S), "tls": {"enabled": True, "existingSecret": "tls"},
              "proxy": {"drainSeconds": DRAIN_S}}
    return install(node, images, tiny, "lorry", "fleet", values, secrets, credentials)


class Stream:
    """A request at a door whose first token has come."""

    def __init__(self, door: str, tokens: int) -> None:
        at = urllib.parse.urlsplit(door)
        self._connection = http.client.HTTPConnection(at.hostname, at.port, timeout=DEADLINE_S)
        body = {"model": "policy", "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "stream": True, "return_token_ids": True}
        self._connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        self._reply = self._connection.getresponse()
        assert self._reply.status == 200, self._reply.read()
        assert self._reply.readline().startswith(b"data: ")

    def rest(self) -> list[dict]:
        """Every event that follows, the last being the end of the stream."""
        data = [line[6:].strip() for line in self._reply.read().splitlines() if line.startswith(b"data: ")]
        self._connection.close()
        assert data and data[-1] == b"[DONE]", "the stream broke off"
        return [json.loads(event) for event in data[:-1]]


def test_a_version_with_a_reference_is_held_against_it(fleet, tiny, judge):
    folder = tiny / "adapters" / "v1"
    said, base = ([expected_logprobs(f, p) for p in PROMPTS] for f in (folder, None))
    answers = fleet.trainer.publish(folder, 1, fleet.credentials, reference=[PROMPTS, said, base], policy={"in_flight": "abort"})
    assert len(answers) == 2
    for answer in answers.values():
        judge(answer, folder, 1)
    done = fleet.release.cli("gap", "status", "--json")
    gaps = [r["gap"] for m in json.loads(done.stdout)["members"] for r in m["observed"]["residencies"]]
    assert len(gaps) == 2 and all(int(gap.get("mean_ppm", 0)) < 100 for gap in gaps), gaps


def test_a_request_that_runs_is_aborted_where_policy_says_so(fleet, tiny):
    streams = [Stream(door, TOKENS_WITHOUT_END) for door in fleet.doors().values()]
    fleet.trainer.publish(tiny / "adapters" / "v2", 2, fleet.credentials)
    for stream in streams:
        assert stream.rest()[-1]["choices"][0]["finish_reason"] == "abort"


def test_somebody_else_may_lease_and_release(fleet):
    def run(*words: str) -> str:
        done = fleet.release.cli(words[0], *words, user=SOMEBODY, role="publisher")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "of 2 engines" in run("lease", "policy", "r1.1", "--ttl", "1h")
    assert str(SOMEBODY) in run("leases")
    run("release", "policy")
    assert str(SOMEBODY) not in run("leases")


def test_a_release_in_another_namespace_lives_beside_it(node, images, fleet, tiny, judge):
    """Of the same name, on the same node, with other tokens and without certificates: each serves its own."""
    secrets = {"lorry-tokens": tokens(node.folder / "other-tokens")}
    credentials = {"token": secrets["lorry-tokens"]["publisher"]}
    values = {"engine": fake_vllm(tiny / "model", replicas=1)}
    other = install(node, images, tiny, "lorry", "other", values, secrets, credentials)
    (answer,) = other.trainer.publish(tiny / "adapters" / "v1", 7, credentials).values()
    judge(answer, tiny / "adapters" / "v1", 7)
    answers = fleet.trainer.publish(tiny / "adapters" / "v3", 3, fleet.credentials)
    assert len(answers) == 2 and len(other.doors()) == 1
    for answer in answers.values():
        judge(answer, tiny / "adapters" / "v3", 3)
    assert not set(fleet.doors().values()) & set(other.doors().values())


def test_a_pod_that_ends_finishes_its_requests_and_leaves_the_roster(fleet, tiny, judge):
    """No barrier waits for it: neither for its engine, nor for a door that nobody can ask any more."""
    before = fleet.doors()
    stream = Stream(before["lorry-engine-1"], TOKENS_OF_SECONDS)
    assert fleet.release.delete("lorry-engine-1") == {"engine": 0, "engine-proxy": 0}  # neither was killed
    events = stream.rest()
    assert events[-1]["choices"][0]["finish_reason"] == "length", events[-1]
    assert list(fleet.doors()) == ["lorry-engine-0"]
    answers = fleet.trainer.publish(tiny / "adapters" / "v1", 4, fleet.credentials, policy={"mode": "barrier"})
    judge(answers[before["lorry-engine-0"]], tiny / "adapters" / "v1", 4)


def test_a_request_without_an_end_costs_a_pod_its_goodbye_neither(fleet):
    """The last one: its engine is the last of the fleet. The proxy aborts what still runs after `drainSeconds`."""
    (door,) = fleet.doors().values()
    stream = Stream(door, TOKENS_WITHOUT_END)
    assert fleet.release.delete("lorry-engine-0") == {"engine": 0, "engine-proxy": 0}
    with pytest.raises((http.client.HTTPException, AssertionError)):
        stream.rest()
    assert fleet.doors() == {}
