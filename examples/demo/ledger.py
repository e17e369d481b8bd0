"""Holds every answer to account: was it the version that it announced, and never the base model?"""

from __future__ import annotations

from dataclasses import dataclass, field

from demo.rollouts import Rollout
from demo.trainer import State, Trainer

# float32 in three implementations of one network: seen below 1e-4; versions differ by more than 1e-2.
TOLERANCE = 2e-3


@dataclass
class Verdict:
    """What the ledger found. ``largest_gap``: between trainer and engines, for answers that were as announced."""

    checked: int = 0
    largest_gap: float = 0.0
    smallest_base_gap: float = float("inf")
    other_version: list[Rollout] = field(default_factory=list)
    base_model: list[Rollout] = field(default_factory=list)
    wrong_digest: list[Rollout] = field(default_factory=list)
    unexplained: list[Rollout] = field(default_factory=list)


def judge(trainer: Trainer, states: dict[int, State], digests: dict[int, str], rollouts: list[Rollout]) -> Verdict:
    """Recomputes every answer's log-probabilities under the version that it announced.

    Args:
        states, digests: by version number, as published.
    """
    verdict = Verdict()
    present = trainer.snapshot()
    for version in sorted({r.version for r in rollouts}):
        announced = [r for r in rollouts if r.version == version]
        if version not in states:
            verdict.other_version += announced
            continue
        trainer.restore(states[version])
        for rollout in announced:
            verdict.checked += 1
            if rollout.digest != digests[version]:
                verdict.wrong_digest.append(rollout)
            gap, base_gap = trainer.gap(rollout), trainer.gap(rollout, base=True)
            verdict.smallest_base_gap = min(verdict.smallest_base_gap, base_gap)
            if gap <= TOLERANCE:
                verdict.largest_gap = max(verdict.largest_gap, gap)
            elif base_gap <= TOLERANCE:
                verdict.base_model.append(rollout)
            else:
                verdict.unexplained.append(rollout)
    for rollout in verdict.unexplained.copy():
        for version, state in states.items():
            trainer.restore(state)
            if version != rollout.version and trainer.gap(rollout) <= TOLERANCE:
                verdict.other_version.append(rollout)
                verdict.unexplained.remove(rollout)
                break
    trainer.restore(present)
    return verdict
