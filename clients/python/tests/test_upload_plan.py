"""What is sent of what is missing, and in which chunks."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lorry import errors
from lorry.connection import Connection
from lorry.image import Image, Piece
from lorry.mover import Movers
from lorry.store.v1 import store_pb2
from lorry.upload import CHUNK_BYTES, PIECES_MAX, Uploader, chunks, intersect, messages


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


def test_a_header_that_the_store_has_lost_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By any rank: all of them have it, and each may be the one that still lives."""
    sent = list[tuple[int, int]]()
    image = cast(Image, SimpleNamespace(header=bytes(8), pieces=[Piece(20, 10)], check=lambda: None))
    uploader = Uploader(cast(Connection, None), cast(Movers, None), image, lambda length: None)
    monkeypatch.setattr(uploader, "_move", lambda begun, spans: sent.extend(spans) or True)
    uploader.send(store_pb2.BeginUploadResponse(missing=[store_pb2.Range(offset=0, length=30)]))
    assert sent == [(0, 8), (20, 30)]


@pytest.mark.parametrize(("reason", "kind"), [
    ("RUN_FENCED", errors.RunFenced), ("ATTEMPT_FENCED", errors.AttemptFenced), ("VERSION_TOO_OLD", errors.VersionConflict),
])
def test_an_upload_that_ended_while_nobody_was_connected_says_why(
    monkeypatch: pytest.MonkeyPatch, reason: str, kind: type[errors.LorryError]
) -> None:
    dead = store_pb2.GetUploadResponse(state=store_pb2.GetUploadResponse.STATE_DEAD, reason=reason)

    def call(answer: Any, request: Any, budget_s: float, stop: threading.Event) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    store = SimpleNamespace(GetUpload=dead, CommitUpload=errors.of("what to do", reason, "FAILED_PRECONDITION"))
    image = cast(Image, SimpleNamespace(header=b"", pieces=[Piece(0, 10)], check=lambda: None))
    uploader = Uploader(cast(Connection, SimpleNamespace(store=store, call=call)), cast(Movers, None), image, lambda length: None)

    def broken(*_: Any) -> bool:
        raise errors.LorryError("the connection broke", "", "UNAVAILABLE")

    monkeypatch.setattr(uploader, "_move", broken)
    with pytest.raises(kind, match="what to do"):
        uploader.send(store_pb2.BeginUploadResponse(missing=[store_pb2.Range(offset=0, length=10)]))
    store.CommitUpload = store_pb2.CommitUploadResponse()  # no store answers so
    with pytest.raises(kind, match="ended at the store"):
        uploader.send(store_pb2.BeginUploadResponse(missing=[store_pb2.Range(offset=0, length=10)]))
