"""The picture of astraflow.json: evaluation and importance weights, adapters beside merged weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

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
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
             _text(LEFT, 24, f"AstraFlow's loop for {steps} steps, twice with one seed ({told['seed']}); {told['servers']}", size=15)]
    for i, (_, words, colour, width) in enumerate(WAYS):
        x = LEFT + i * 240
        parts += [f'<line x1="{x}" y1="40" x2="{x + 26}" y2="40" stroke="{colour}" stroke-width="{width}"/>', _text(x + 32, 44, words)]
    for i, panel in enumerate(panels):
        parts += _panel(told, steps, TOP + i * (PANEL + GAP), *panel)
    parts.append(_text(WIDTH / 2, height - 14, "step", anchor="middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(told: dict, steps: int, top: float, title: str, key: str, scale: Callable[[float], float], ticks: Sequence[float],
           limit: float | None) -> list[str]:
    def x(step: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps

    def y(value: float) -> float:
        return top + PANEL * (1 - scale(value))

    parts = [_text(LEFT, top - 6, title)]
    for tick in ticks:
        parts += [f'<line x1="{LEFT}" y1="{y(tick):.1f}" x2="{WIDTH - RIGHT}" y2="{y(tick):.1f}" stroke="#e3e6ea"/>',
                  _text(LEFT - 8, y(tick) + 4, f"{tick:g}", anchor="end")]
    for step in range(0, steps + 1, max(steps // 5, 1)):
        parts.append(_text(x(step), top + PANEL + 16, str(step), anchor="middle"))
    if limit is not None:
        parts += [f'<line x1="{LEFT}" y1="{y(limit):.1f}" x2="{WIDTH - RIGHT}" y2="{y(limit):.1f}" stroke="#c0392b" stroke-dasharray="6 4"/>',
                  _text(WIDTH - RIGHT - 4, y(limit) - 5, f"limit {limit:g}", anchor="end", colour="#c0392b")]
    for way, _, colour, width in WAYS:
        points = " ".join(f"{x(i + 1):.1f},{y(step[key]):.1f}" for i, step in enumerate(told[way]))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
    return parts


def _text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", colour: str = "#24292f") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def _linear(low: float, high: float) -> Callable[[float], float]:
    return lambda value: (value - low) / (high - low)


def _logarithmic(low: float, high: float) -> Callable[[float], float]:
    return lambda value: math.log(max(value, low) / low) / math.log(high / low)


def _decades(low: float, high: float) -> list[float]:
    return [10.0**e for e in range(round(math.log10(low)), round(math.log10(high)) + 1)]
