"""What is sent of what is missing, and in which chunks."""

from __future__ import annotations

from lorry.upload import CHUNK_BYTES, PIECES_MAX, chunks, intersect, messages


def test_only_what_is_mine_and_missing_is_sent() -> None:
    assert intersect([(0, 10), (20, 30)], [(5, 25)]) == [(5, 10), (20, 25)]
    assert intersect([(0, 10)], [(10, 20)]) == []
    assert intersect([(0, 10)], []) == []
    assert intersect([(0, 4), (6, 8)], [(1, 2), (3, 7)]) == [(1, 2), (3, 4), (6, 7)]


def test_chunks_end_at_leaf_boundaries() -> None:
    spans = list(chunks([(CHUNK_BYTES - 5, 2 * CHUNK_BYTES + 7)]))
    assert spans == [(CHUNK_BYTES - 5, CHUNK_BYTES), (CHUNK_BYTES, 2 * CHUNK_BYTES),
                     (2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 7)]
    assert list(chunks([])) == []


def test_small_pieces_go_together() -> None:
    columns = [(at, at + 512) for at in range(0, 1 << 20, 1024)]
    assert list(messages(columns)) == [columns]
    assert [len(m) for m in messages((n, n + 1) for n in range(2 * PIECES_MAX + 1))] == [PIECES_MAX, PIECES_MAX, 1]
    large = [(0, CHUNK_BYTES), (CHUNK_BYTES, 2 * CHUNK_BYTES)]
    assert list(messages(large)) == [[large[0]], [large[1]]]
    assert list(messages([])) == []
