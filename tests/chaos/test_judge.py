"""The judge alone: each thing that must not be is seen, and a clean campaign is clean."""

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "fakes")]

from engine_core import WEIGHTS, expected_tokens  # noqa: E402
from judge import OF_THE_LEADER, Judge, lost  # noqa: E402
from ledger import PROMPTS, Call, Fault, Hold, Ledger, Reply, Rollback  # noqa: E402
from testing.faults import digest_of  # noqa: E402

DOOR, ADAPTER = "vllm-1", "policy"


class Story:
    """A ledger with versions 1 to 3 published at 10, 20, 30, and replies that a test adds."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.ledger = Ledger()
        self.folders = []
        self.events: list[dict] = []
        self.in_order: frozenset[str] = frozenset()
        for number in (1, 2, 3):
            made = folder / str(number)
            made.mkdir()
            (made / WEIGHTS).write_bytes(bytes([number]))
            self.folders.append(made)
            entry = self.ledger.publish(ADAPTER, (1, number), made, "")
            entry.began, entry.stored, entry.ended, entry.outcome = 10.0 * number, 10.0 * number + 1, 10.0 * number + 2, "SERVING"

    def answer(self, at: float, number: int, kind: str = "latest", asked: str = ADAPTER, bytes_of: int = 0, **more) -> Reply:
        tokens = expected_tokens(self.folders[(bytes_of or number) - 1], PROMPTS[0], 6)
        fields = {"status": 200, "announced": (1, number), "epoch": number,
                  "sources": [self.ledger.source_of(ADAPTER, 0, tokens)], **more}
        reply = Reply(DOOR, kind, ADAPTER, asked, at, at + 0.1, **fields)
        self.ledger.replies.append(reply)
        return reply

    def found(self) -> list[str]:
        return [v.what for v in Judge(self.ledger, self.events, self.in_order).all()]


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path)


def test_a_clean_campaign_is_clean(story):
    for at, number in ((12, 1), (22, 2), (32, 3)):
        story.answer(at, number)
        story.answer(at, number, kind="explicit", asked=f"{ADAPTER}@{number}")
    assert story.found() == []


def test_other_bytes_than_announced_are_seen(story):
    story.answer(32, 3, bytes_of=2)
    assert "announced (1, 3), bytes of [(1, 2)]" in story.found()[0]


def test_one_choice_of_many_by_other_bytes_is_seen(story):
    story.answer(32, 3, kind="many", sources=[(1, 3), (1, 3), (1, 2)])
    assert len(story.found()) == 1


def test_bytes_of_nobody_are_seen(story):
    story.answer(32, 3, sources=[None])
    assert "bytes of [None]" in story.found()[0]


def test_the_base_model_is_seen(story):
    tokens = expected_tokens(None, PROMPTS[0], 6)
    assert story.ledger.is_base(0, tokens)
    story.answer(32, 3, reason="BASE")
    assert "by the base model" in story.found()[0]


def test_a_version_that_nobody_had_published_is_seen(story):
    story.answer(15, 3)
    assert "which nobody had published" in story.found()[0]


def test_doors_that_do_not_change_together_are_seen_where_they_should(story):
    story.answer(32, 3)
    story.answer(31.95, 2).door = "vllm-2"  # sent before the other was answered
    late = story.answer(33, 2)
    late.door = "vllm-2"
    assert story.found() == []
    story.in_order = frozenset({ADAPTER})
    assert story.found() == [f"vllm-2 began {ADAPTER} (1, 2) in epoch 2 after {DOOR} had answered in epoch 3"]


def test_a_door_that_falls_back_is_seen_in_epoch_and_version(story):
    story.answer(32, 3)
    story.answer(33, 2)
    assert story.found() == [f"{DOOR}: {ADAPTER} fell from epoch 3 to 2", f"{DOOR}: {ADAPTER} fell from (1, 3) to (1, 2)"]


def test_requests_side_by_side_have_no_order(story):
    late = story.answer(31.9, 2)
    late.received = 32.5
    story.answer(32, 3)
    assert story.found() == []


def test_a_door_goes_back_where_an_operator_does_but_never_in_epoch(story):
    story.answer(32, 3)
    story.ledger.rollbacks.append(Rollback(ADAPTER, 32.5, 33.5))
    story.answer(33, 2, epoch=4)
    assert story.found() == []
    story.answer(34, 2, epoch=3)
    assert story.found() == [f"{DOOR}: {ADAPTER} fell from epoch 4 to 3"]


def test_a_pin_takes_hold_at_any_moment_until_it_is_lifted(story):
    pin = Rollback(ADAPTER, 31.5)
    story.ledger.rollbacks.append(pin)
    story.answer(32, 3)
    story.answer(33, 2, epoch=4)
    assert story.found() == []
    pin.ended = 31.7
    assert story.found() == [f"{DOOR}: {ADAPTER} fell from (1, 3) to (1, 2)"]


def test_an_explicit_version_is_that_one(story):
    story.answer(32, 3, kind="explicit", asked=f"{ADAPTER}@2")
    assert len(story.found()) == 1


def test_an_alias_is_what_it_names_or_named(story):
    story.ledger.aliases[ADAPTER, "eval"] = [(12.0, (1, 1)), (32.0, (1, 3))]
    story.answer(33, 1, kind="alias", asked=f"{ADAPTER}@eval")
    assert story.found() == []
    story.answer(33, 2, kind="alias", asked=f"{ADAPTER}@eval")
    assert len(story.found()) == 1


def test_a_good_version_that_is_not_served_is_seen(story):
    story.ledger.published[ADAPTER, (1, 2)].outcome = "POISONED"
    assert "is good and ended POISONED" in story.found()[0]


def test_a_publish_that_never_ends_is_seen_whatever_it_publishes(story):
    entry = story.ledger.published[ADAPTER, (1, 3)]
    entry.ended, entry.outcome = 0.0, ""
    assert story.found() == ["policy r1.3 was published, and its trainer hangs in it"]
    entry.wrong = "die at load"
    assert len(story.found()) == 1


def test_a_third_death_in_a_group_and_the_death_of_a_good_version_are_seen(story):
    story.ledger.published[ADAPTER, (1, 2)].wrong = "die at load"
    died = {"event": "died", "name": "policy-v2", "digest": digest_of(story.folders[1])}
    story.events += [{"at": 20.0 + i, "engine": engine, **died} for i, engine in
                     enumerate(["sglang-1", "vllm-1", "sglang-2", "vllm-1"])]
    assert story.found() == []
    story.events.append({"at": 25.0, "engine": "sglang-1", **died})
    assert story.found() == ["policy r1.2 cost sglang its engine no. 3"]
    story.ledger.published[ADAPTER, (1, 2)].wrong = ""
    assert story.found()[0] == "sglang-1 died of policy r1.2, which is good"


def test_what_engines_should_never_do_is_seen(story):
    story.events += [
        {"at": 1.0, "engine": "sglang-1", "event": "unload", "name": "x", "live": 0},
        {"at": 2.0, "engine": "sglang-1", "event": "unload", "name": "x", "live": 2},
        {"at": 3.0, "engine": "sglang-1", "event": "reloaded", "name": "x"},
        {"at": 4.0, "engine": "sglang-1", "event": "evicted", "name": "x", "live": 0},
        {"at": 5.0, "engine": "vllm-1", "event": "evicted", "name": "x", "live": 0},
    ]
    assert len(story.found()) == 3


def test_a_reply_that_breaks_off_is_seen_unless_its_door_was_touched(story):
    story.ledger.replies.append(Reply(DOOR, "latest", ADAPTER, ADAPTER, 50, 51, reason="reset"))
    assert "broke off" in story.found()[0]
    story.ledger.faults.append(Fault("kill proxy", frozenset([DOOR]), 49, 52, 53))
    assert story.found() == []
    story.ledger.replies[0].reason = "TimeoutError: timed out"
    assert story.found() == [f"{DOOR} broke off {ADAPTER}: TimeoutError: timed out"], "by no fault that was healed"


@pytest.mark.parametrize("how", OF_THE_LEADER)
def test_a_door_that_closes_as_a_leader_returns_is_seen(story, how):
    fault = Fault(how, frozenset(), 100, 105, 106)
    story.ledger.faults.append(fault)
    story.ledger.replies.append(Reply(DOOR, "latest", ADAPTER, ADAPTER, 104, 104.1, 409, "STALE_VERSION"))
    assert story.found() == [f"after {how} {DOOR} answered 409"]
    story.ledger.faults.append(Fault("kill engine", frozenset([DOOR]), 103, 104, 105))
    assert story.found() == [], "somebody else's doing, perhaps"


def test_a_fault_that_nobody_recovers_from_is_seen(story):
    story.ledger.faults.append(Fault("kill store", frozenset(), 100, 105))
    assert "were not enough" in story.found()[0]


def test_what_retention_may_delete_is_not_lost():
    acknowledged = [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert lost(acknowledged, {(1, 1), (1, 3), (2, 1), (2, 2)}, 0) == [(1, 2)]
    assert lost(acknowledged, {(1, 3), (2, 1), (2, 2)}, 3) == []
    assert lost(acknowledged, {(1, 2), (2, 1), (2, 2)}, 3) == [(1, 3)]


REFUSALS = [
    ("latest", "policy", 500, ""), ("many", "policy", 400, "N_UNSUPPORTED_ON_SGLANG"), ("stream", "policy", 404, "UNKNOWN_ADAPTER"),
    ("explicit", "policy@2", 404, "UNKNOWN_ADAPTER"), ("alias", "policy@eval", 503, "CATCHING_UP"), ("latest", "policy", 503, "ENGINE_ASLEEP"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "asked", "status", "reason"), REFUSALS)
def test_a_refusal_at_a_door_that_nobody_touched_is_seen(story, kind, asked, status, reason):
    story.ledger.replies.append(Reply(DOOR, kind, ADAPTER, asked, 50, 50.1, status, reason))
    assert story.found() == [f"{DOOR} refused {asked} ({kind}): {status} {reason}"]
    story.ledger.faults.append(Fault("kill engine", frozenset([DOOR]), 49, 52, 53))
    assert story.found() == []


def test_an_engine_is_away_from_its_death_to_its_next_boot(story):
    story.ledger.replies.append(Reply(DOOR, "latest", ADAPTER, ADAPTER, 50, 50.1, 503, "ENGINE_UNREACHABLE"))
    story.events.append({"at": 20.0, "engine": DOOR, "event": "died", "name": "", "digest": "", "why": "asked to"})
    assert story.found() == []
    story.events.append({"at": 39.0, "engine": DOOR, "event": "boot"})
    assert len(story.found()) == 1
    story.events[-1]["at"] = 41.0
    assert story.found() == [], "the door looks for it again at its next look"


def test_what_a_door_may_say_that_nobody_touched(story):
    for kind, reason in (("latest", "STALE_VERSION"), ("many", "CATCHING_UP"), ("explicit", "NOT_LOADED"), ("alias", "NOT_LOADED")):
        story.ledger.replies.append(Reply(DOOR, kind, ADAPTER, ADAPTER, 50, 50.1, 409, reason))
    assert story.found() == []
    story.ledger.replies.append(Reply(DOOR, "latest", ADAPTER, ADAPTER, 50, 50.1, 503, "ENGINE_ASLEEP"))
    story.ledger.holds.append(Hold(DOOR, 49, 49.5))
    assert story.found() == [], "its framework may be waking it still"


def test_doors_that_wait_for_each_other_may_say_so_and_others_not(story):
    story.ledger.replies.append(Reply(DOOR, "latest", ADAPTER, ADAPTER, 50, 50.1, 503, "SYNC_IN_DOUBT"))
    assert len(story.found()) == 1
    story.in_order = frozenset({ADAPTER})
    assert story.found() == []


def test_a_refusal_before_every_door_had_served_is_none(story):
    story.ledger.replies.append(Reply(DOOR, "latest", ADAPTER, ADAPTER, 50, 50.1, 409, "NOT_LOADED"))
    assert len(story.found()) == 1
    story.ledger.served = 51
    assert story.found() == []


def test_a_way_to_ask_that_is_never_answered_again_is_seen(story):
    for at in range(50, 170, 2):
        story.answer(at, 3)
        story.ledger.replies.append(Reply(DOOR, "explicit", ADAPTER, f"{ADAPTER}@3", at, at + 0.1, 409, "NOT_LOADED"))
    assert story.found() == [f"{DOOR} answered no explicit of {ADAPTER} for 60 s: 409 NOT_LOADED"]
    story.ledger.faults.append(Fault("stop engine", frozenset([DOOR]), 60, 160, 165))
    assert story.found() == [], "what was broken proves nothing"
    story.ledger.faults.clear()
    story.answer(100, 3, kind="explicit", asked=f"{ADAPTER}@3")
    story.answer(160, 3, kind="explicit", asked=f"{ADAPTER}@3")
    assert story.found() == []


@pytest.fixture
def bound(story):
    """A framework has bound `lora` to the first bytes at 40, to the second at 50."""
    for number in (1, 2):
        bind = story.ledger.bind(DOOR, "lora", number, story.folders[number - 1])
        bind.began, bind.done = 30.0 + 10 * number, 31.0 + 10 * number
    return story


def by_binding(story, at: float, number: int, **more) -> Reply:
    tokens = expected_tokens(story.folders[number - 1], PROMPTS[0], 6)
    fields = {"status": 200, "digest": f"d{number}", "sources": [story.ledger.source_of(DOOR, 0, tokens)], **more}
    reply = Reply(DOOR, "bound", DOOR, "lora", at, at + 0.1, **fields)
    story.ledger.replies.append(reply)
    return reply


def test_a_binding_is_answered_by_the_bytes_that_it_has(bound):
    by_binding(bound, 42, 1)
    by_binding(bound, 50.5, 1)  # while it is bound anew
    by_binding(bound, 52, 2)
    assert bound.found() == []


def test_a_binding_that_is_answered_by_what_it_was_before_is_seen(bound):
    by_binding(bound, 52, 1)
    assert bound.found() == [f"{DOOR} answered lora by bytes 1, and had bound 2 before"]


def test_a_binding_that_is_answered_by_what_it_will_be_is_seen(bound):
    by_binding(bound, 45, 2)
    assert bound.found() == [f"{DOOR} answered lora by bytes 2, which are those of lora"]


def test_a_binding_that_is_answered_by_the_base_or_by_nobody_is_seen(bound):
    by_binding(bound, 52, 2, reason="BASE")
    by_binding(bound, 53, 3)
    assert bound.found() == [f"{DOOR} answered lora by the base model", f"{DOOR} answered lora by bytes of nobody"]


def test_one_digest_of_two_contents_is_seen(bound):
    by_binding(bound, 42, 1)
    by_binding(bound, 52, 2, digest="d1")
    assert bound.found() == [f"{DOOR} answered lora: one digest, two contents"]


def test_a_name_that_is_forgotten_is_seen_unless_the_disk_was_lost(bound):
    bound.ledger.replies.append(Reply(DOOR, "bound", DOOR, "lora", 60, 60.1, 404, "UNKNOWN_ADAPTER"))
    assert bound.found() == [f"{DOOR} has forgotten lora"]
    bound.ledger.faults.append(Fault("wipe proxy", frozenset([DOOR]), 55, 57, 58))
    assert bound.found() == []


def test_a_call_that_fails_where_nothing_is_broken_is_seen(bound):
    bound.ledger.calls.append(Call(DOOR, "sleep", 60, 61, 503, "why"))
    assert bound.found() == [f"{DOOR} refused a framework's sleep: 503 why"]
    bound.ledger.faults.append(Fault("stop engine", frozenset([DOOR]), 48, 49, 52))
    assert bound.found() == [], "what was broken just before"
    bound.ledger.faults.clear()
    bound.ledger.calls[0].step_began = 0.0
    assert bound.found() == [], "it fails of what failed before"


def test_what_is_cut_short_without_a_framework_is_seen(story):
    story.answer(32, 3, reason="CUT_SHORT", sources=[None])
    assert story.found() == [f"{DOOR} cut an answer to {ADAPTER} short"]
    story.ledger.holds.append(Hold(DOOR, 31, 33))
    assert story.found() == []


def test_an_engine_that_ends_of_a_call_is_seen(story):
    died = {"event": "died", "engine": DOOR, "name": "", "digest": ""}
    story.events += [{"at": 5.0, "why": "asked to", **died}, {"at": 6.0, "why": "an illegal memory access", **died}]
    assert story.found() == [f"{DOOR} ended of a call: an illegal memory access"]


def test_all_engines_may_be_gone_at_once(story):
    entry = story.ledger.published[ADAPTER, (1, 2)]
    entry.outcome = "TOO_FEW_ENGINES"
    assert "is good and ended" in story.found()[0]
    story.ledger.faults.append(Fault("kill everything", frozenset([DOOR]), entry.began, entry.ended, entry.ended))
    assert story.found() == []
