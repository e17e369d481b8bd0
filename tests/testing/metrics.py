"""What a program's /metrics says."""

from __future__ import annotations


def samples(text: str, prefix: str) -> list[float]:
    """Of the lines that begin so. Labels stand in the order of their names."""
    return [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(prefix)]


def sent(text: str, transport: str = "") -> int:
    """Image bytes that others have had from the program, by one transport or by all."""
    label = f',transport="{transport}"' if transport else ""
    return int(sum(samples(text, f'lorry_transfer_bytes_total{{direction="out"{label}')))
