"""The picture of astraflow.json: evaluation and importance weights, adapters beside merged weights."""

from __future__ import annotations

import math
import pathlib
import sys
from collections.abc import Callable, Sequence

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from svg import document, line, text  # noqa: E402

WIDTH, LEFT, RIGHT, PANEL, GAP, TOP = 820, 78, 24, 170, 54, 84
# The first one is drawn broad and beneath: where both agree, both are seen.
WAYS = (("adapters", "adapters at Lorry's doors", "#79b0f7", 5), ("merged", "merged weights", "#d1590a", 1.5))
LIMIT = 1e-3


def draw(told: dict) -> str:
    """An SVG of two panels over the steps."""
    steps = max(len(told[way]) for way, *_ in WAYS)
    smallest = min(step["weight_gap"] for way, *_ in WAYS for step in told[way])
    floor = 10 ** math.floor(math.log10(max(smallest, 1e-8)))
    panels = (
        ("evaluation: share of wanted tokens, on the mirrored server", "eval", _linear(0, 1), [0, 0.25, 0.5, 0.75, 1], None),
        ("largest |importance weight − 1| of a token in the step", "weight_gap", _logarithmic(floor, 1e-2), _decades(floor, 1e-2), LIMIT),
    )
    height = TOP + len(panels) * (PANEL + GAP)
    parts = [text(LEFT, 24, f"AstraFlow's loop for {steps} steps, twice with one seed ({told['seed']}); {told['servers']}", size=15)]
    for i, (_, words, colour, width) in enumerate(WAYS):
        x = LEFT + i * 240
        parts += [line(x, 40, x + 26, 40, colour, width=width), text(x + 32, 44, words)]
    for i, panel in enumerate(panels):
        parts += _panel(told, steps, TOP + i * (PANEL + GAP), *panel)
    parts.append(text(WIDTH / 2, height - 14, "step", anchor="middle"))
    return document(WIDTH, height, parts)


def _panel(told: dict, steps: int, top: float, title: str, key: str, scale: Callable[[float], float], ticks: Sequence[float],
           limit: float | None) -> list[str]:
    def x(step: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps

    def y(value: float) -> float:
        return top + PANEL * (1 - scale(value))

    parts = [text(LEFT, top - 6, title)]
    for tick in ticks:
        parts += [line(LEFT, y(tick), WIDTH - RIGHT, y(tick)),
                  text(LEFT - 8, y(tick) + 4, f"{tick:g}", anchor="end")]
    for step in range(0, steps + 1, max(steps // 5, 1)):
        parts.append(text(x(step), top + PANEL + 16, str(step), anchor="middle"))
    if limit is not None:
        parts += [line(LEFT, y(limit), WIDTH - RIGHT, y(limit), "#c0392b", dashes="6 4"),
                  text(WIDTH - RIGHT - 4, y(limit) - 5, f"limit {limit:g}", anchor="end", colour="#c0392b")]
    for way, _, colour, width in WAYS:
        points = " ".join(f"{x(i + 1):.1f},{y(step[key]):.1f}" for i, step in enumerate(told[way]))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
    return parts


def _linear(low: float, high: float) -> Callable[[float], float]:
    return lambda value: (value - low) / (high - low)


def _logarithmic(low: float, high: float) -> Callable[[float], float]:
    return lambda value: math.log(max(value, low) / low) / math.log(high / low)


def _decades(low: float, high: float) -> list[float]:
    return [10.0**e for e in range(round(math.log10(low)), round(math.log10(high)) + 1)]
