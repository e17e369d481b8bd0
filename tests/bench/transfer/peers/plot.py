"""usage: plot.py PEERS_JSON PICTURE_SVG: draws what table.py measured, a panel for each size and number of receivers.

A bar is the median of a way's rounds with the hash inside the clock; an outline behind it is the median without. Panels show the
state of the machine in which Lorry has most rounds.
"""

from __future__ import annotations

import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))
from svg import GRID, bar, document, line, text  # noqa: E402

WIDTH, LEFT, RIGHT, ROW, TOP, HEAD = 860, 290, 70, 20, 56, 44
OURS, THEIRS, BARE = "#d1590a", "#79b0f7", "#e3e6ea"


def draw(told: dict) -> str:
    panels: dict[tuple[int, int], list[dict]] = {}
    for row in told["rows"]:
        panels.setdefault((row["bytes"], row["receivers"]), []).append(row)
    parts = [text(16, 26, "The same bytes between processes of one host: GB/s of all receivers together", size=15),
             *_legend(44)]
    y = TOP
    for (size, receivers), rows in panels.items():
        state = _state(rows)
        shown = sorted(((row, row["median_GBps"][state]) for row in rows if state in row["median_GBps"]), key=lambda each: -_checked(each[1]))
        y += HEAD
        parts.append(text(16, y - 10, f"{size / 1e6:.0f} MB to {receivers} receiver{'s' * (receivers > 1)}", size=14))
        parts += _panel(shown, y)
        y += ROW * len(shown)
    return document(WIDTH, y + 24, parts)


def _checked(median: dict) -> float:
    """A peer that is a program of its own has no hash inside its clock."""
    return median["hashed"] or median["bare"]


def _state(rows: list[dict]) -> str:
    """Of the machine, in which most rounds of Lorry were."""
    states = [each["state"] for row in rows if row["name"].startswith("Lorry") for each in row["rounds"]]
    return max(set(states), key=states.count, default="near")


def _legend(y: float) -> list[str]:
    parts, x = [], 16.0
    for colour, words in ((OURS, "Lorry"), (THEIRS, "others, hashed by the receivers"), (BARE, "nobody hashes; of peers that are programs of their own")):
        parts += [bar(x, y - 10, 20, 11, colour), text(x + 26, y, words)]
        x += 60 + 7 * len(words)
    return parts


def _panel(shown: list[tuple[dict, dict]], top: float) -> list[str]:
    most = max((max(_checked(median), median["bare"] or 0) for _, median in shown), default=1.0)
    parts = [line(LEFT, top - 2, LEFT, top + ROW * len(shown), GRID)]
    for i, (row, median) in enumerate(shown):
        y = top + i * ROW
        scale = (WIDTH - LEFT - RIGHT) / most
        ours = row["name"].startswith("Lorry")
        parts.append(text(LEFT - 8, y + 12, row["name"], anchor="end"))
        if median["bare"] and median["hashed"]:
            parts.append(bar(LEFT, y + 2, median["bare"] * scale, ROW - 6, BARE))
        colour = OURS if ours else THEIRS if median["hashed"] else BARE
        parts += [bar(LEFT, y + 2, _checked(median) * scale, ROW - 6, colour),
                  text(LEFT + max(_checked(median), median["bare"] or 0) * scale + 6, y + 12, f"{_checked(median):.2g}")]
    return parts


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[2]).write_text(draw(json.loads(pathlib.Path(sys.argv[1]).read_text())))
