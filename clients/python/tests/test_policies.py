"""Policies in people's words, there and back."""

from __future__ import annotations

from typing import Any

import pytest

from lorry import policies
from lorry.common.v1 import adapter_pb2
from lorry.errors import LorryError


@pytest.mark.parametrize("fields", [
    {"mode": "rolling", "max_staleness": 0, "keep": 3, "min_engines": "100%"},
    {"keep": "all", "min_engines": 2, "stale": "tag", "stage_deadline_ms": 4000},
    {"pools": [{"pool": "eval", "alias": "best"}], "in_flight": "finish_on_old", "quota_bytes": 1 << 40},
    {},
])
def test_words_come_back_as_they_were_given(fields: dict[str, Any]) -> None:
    policy = adapter_pb2.AdapterPolicy()
    policies.change(policy, fields)
    assert policies.to_words(policy) == fields


def test_only_what_is_given_changes_and_none_means_the_default() -> None:
    policy = adapter_pb2.AdapterPolicy(max_staleness=4, stage_deadline_ms=5)
    policies.change(policy, {"keep": {"versions": 2}, "stage_deadline_ms": None, "mode": "SYNC_MODE_ROLLING"})
    assert policies.to_words(policy) == {"max_staleness": 4, "keep": 2, "mode": "rolling"}


@pytest.mark.parametrize(("fields", "hint"), [
    ({"max_stalenes": 1}, "did you mean max_staleness"),
    ({"mode": "roling"}, "one of rolling, barrier"),
    ({"max_staleness": "many"}, "max_staleness cannot be 'many'"),
    ({"keep": "some"}, "keep cannot be 'some'"),
    ({"pools": 3}, "pools cannot be 3"),
])
def test_what_no_policy_can_be_is_refused_with_what_can(fields: dict[str, Any], hint: str) -> None:
    with pytest.raises(LorryError, match=hint) as refused:
        policies.change(adapter_pb2.AdapterPolicy(), fields)
    assert refused.value.reason == "POLICY_INVALID"
