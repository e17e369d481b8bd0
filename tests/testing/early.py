"""An image whose header is three leaves long, which a store has as soon as the upload begins: so that what is read ahead of the commit can
be waited for."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable

from lorry.common.v1 import adapter_pb2
from lorry.store.v1 import store_pb2
from testing.raw_publish import RawImage, RawPublisher
from testing.waiting import until

LEAF = 1 << 20
HEADER_LEAVES = 3
HEADER_BYTES = HEADER_LEAVES * LEAF


def padded(folder: pathlib.Path, target: pathlib.Path, padding: int = HEADER_BYTES) -> pathlib.Path:
    """A copy of the adapter whose header has so much more; by default it fills three leaves and a little of a fourth."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    path = target / "adapter_model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    entries["__metadata__"] = {"format": "pt", "padding": "x" * padding}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return target


def begin(publisher: RawPublisher, number: int, image: RawImage, sent: Callable[[], int], before: int) -> store_pb2.BeginUploadResponse:
    """Begins an upload, again while nobody follows the adapter yet, until somebody has its header. `sent`: what the store has sent,
    `before`: had before."""

    def heard() -> store_pb2.BeginUploadResponse | None:
        begun = publisher.begin(number, image)
        try:
            until(lambda: sent() >= before + HEADER_BYTES, "the header was read", 2)
        except AssertionError:
            return None
        return begun

    begun: store_pb2.BeginUploadResponse = until(heard, "an upload is read ahead")
    return begun


def finish(publisher: RawPublisher, begun: store_pb2.BeginUploadResponse, image: RawImage) -> adapter_pb2.Version:
    for span in begun.missing:
        publisher.put(begun.ticket, span.offset, image.data[span.offset : span.offset + span.length])
    return publisher.commit(begun.upload_id)
