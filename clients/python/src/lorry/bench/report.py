"""What was measured, as a table with a plain sentence of advice."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Row:
    """One way to sync, from weights in the trainer's memory to the first token by them.

    Attributes:
        seconds: of each round.
        parts: medians of its steps, in seconds.
        bytes: that it moves.
        failed: why there are no figures, or fewer; empty where all is well.
    """

    path: str
    bytes: int = 0
    seconds: list[float] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    failed: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Result:
    """Attributes:
        adapter_rate, base_rate: tokens a second by the adapter and by the base model, which generates as merged weights do.
        merged_gap: largest difference of log-probabilities between merged weights and adapter, over the tokens that they share; None:
            not measured, or already the first token differs.
    """

    engine: str
    adapter: str
    rows: list[Row]
    adapter_rate: float = 0.0
    base_rate: float = 0.0
    merged_gap: float | None = None

    def row(self, path: str) -> Row | None:
        """Where it has figures."""
        return next((row for row in self.rows if row.path == path and row.seconds), None)

    def cost_s(self) -> float:
        """Seconds that one token by the adapter takes longer than by merged weights; 0 where no difference is measured."""
        return max(1 / self.adapter_rate - 1 / self.base_rate, 0.0) if self.adapter_rate and self.base_rate else 0.0

    def break_even(self) -> float | None:
        """Tokens of one engine between two syncs above which merged weights take less time in all; None: never, or unknown."""
        lorry, merged = self.row("lorry"), self.row("merged")
        if lorry is None or merged is None:
            return None
        saved = merged.median - lorry.median
        if saved <= 0:
            return 0.0
        return saved / self.cost_s() if self.cost_s() > 0 else None

    def advice(self) -> str:
        lorry, merged = self.row("lorry"), self.row("merged")
        if lorry is None:
            return "No advice: the sync through Lorry has no figures."
        if merged is None:
            return "No advice on merged weights: they were not measured."
        saved, tokens = merged.median - lorry.median, self.break_even()
        if saved <= 0:
            return (f"Merged weights would be the better choice here: each sync takes {_time(-saved)} less than the adapter's. "
                    "That is so for models of a few megabytes; look again with the model that you train.")
        if tokens is None:
            return f"Sync the adapter: merged weights take {_time(saved)} longer a sync, and generate no faster here."
        return (f"Sync the adapter: merged weights take {_time(saved)} longer a sync. They would be the better choice where one engine generates "
                f"more than {tokens:,.0f} tokens between two syncs, as each is {self.cost_s() * 1e3:.3g} ms faster without an adapter.")

    def to_json(self) -> dict[str, Any]:
        lorry = self.row("lorry")
        rows = [{"path": row.path, "bytes": row.bytes, "seconds": row.seconds, "parts": row.parts, "failed": row.failed,
                 "ratio": row.median / lorry.median if row.seconds and lorry else None} for row in self.rows]
        return {"engine": self.engine, "adapter": self.adapter, "paths": rows, "adapter_tokens_per_s": self.adapter_rate,
                "base_tokens_per_s": self.base_rate, "merged_logprob_gap": self.merged_gap, "break_even_tokens": self.break_even(),
                "advice": self.advice()}

    def to_text(self) -> str:
        lorry = self.row("lorry")
        cells = [["PATH", "MEDIAN", "MIN", "MAX", "RATIO", "MOVES", "OF WHICH"]]
        for row in self.rows:
            if not row.seconds:
                cells.append([_WORDS[row.path], "–", "", "", "", "", row.failed])
                continue
            ratio = f"{row.median / lorry.median:.2f}" if lorry else ""
            parts = ", ".join(f"{name} {_time(s)}" for name, s in row.parts.items())
            cells.append([_WORDS[row.path], _time(row.median), _time(min(row.seconds)), _time(max(row.seconds)), ratio, _size(row.bytes),
                          row.failed or parts])
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
        if self.adapter_rate:
            lines += ["", f"generation: {self.adapter_rate:.0f} tokens/s by the adapter, {self.base_rate:.0f} by the base model, as merged weights do"]
        if self.row("merged"):
            lines.append("merged weights and adapter " + ("already differ in their first token" if self.merged_gap is None else
                                                          f"differ by {self.merged_gap:.2g} nats at most"))
        if self.row("file"):
            lines += ["", "File + POST is for one engine: the trainer repeats it for each, nobody waits for requests that still run on what is unloaded, and nothing "
                      "shows that the engine applies the version or which one answered."]
        return "\n".join([self.engine, self.adapter, "", *lines, "", self.advice()])


_WORDS = {"lorry": "Lorry", "file": "file + POST", "merged": "merged weights"}


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
