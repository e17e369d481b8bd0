"""What is sent of what is missing, and in which chunks."""

from __future__ import annotations

from lorry.upload import CHUNK_BYTES, chunks, intersect


def test_only_what_is_mine_and_missing_is_sent() -> None:
    assert intersect([(0, 10), (20, 30)], [(5, 25)]) == [(5, 10), (20, 25)]
    assert intersect([(0, 10)], [(10, 20)]) == []
    assert intersect([(0, 10)], []) == []


def test_chunks_end_at_leaf_boundaries() -> None:
    spans = list(chunks([(CHUNK_BYTES - 5, 2 * CHUNK_BYTES + 7)]))
    assert spans == [(CHUNK_BYTES - 5, CHUNK_BYTES), (CHUNK_BYTES, 2 * CHUNK_BYTES),
                     (2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 7)]
    assert list(chunks([])) == []
