"""The store's upload calls one by one, for what the Python client would never send."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import lorry
import xxhash
from lorry import errors
from lorry.common.v1 import adapter_pb2
from lorry.store.v1 import store_pb2
from lorry.transfer.v1 import transfer_pb2, transfer_pb2_grpc

CHUNK_BYTES = 1 << 20


@dataclass
class RawImage:
    """What BeginUpload is told, and the bytes. Change any field to lie."""

    header: bytes
    config_json: str
    image_bytes: int
    data: bytes

    @staticmethod
    def of(folder: pathlib.Path) -> RawImage:
        data = (folder / "adapter_model.safetensors").read_bytes()
        length = 8 + int.from_bytes(data[:8], "little")
        return RawImage(data[:length], (folder / "adapter_config.json").read_text(), len(data), data)

    @staticmethod
    def with_header(entries: object, body: bytes, config_json: str) -> RawImage:
        """An image of any header."""
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        header = len(text).to_bytes(8, "little") + text
        return RawImage(header, config_json, len(header) + len(body), header + body)


class RawPublisher:
    """One run's uploads; `connection`: arguments of lorry.Connection. Every method raises lorry.LorryError with the store's reason."""

    def __init__(self, connection: dict[str, str], adapter: str, run: int) -> None:
        self._connection = lorry.Connection(**connection)
        self._transfer = transfer_pb2_grpc.TransferServiceStub(self._connection.store_channel)
        self._adapter, self._run = adapter, run

    def begin(
        self, number: int, image: RawImage, expected_digest: str = "", attempt: int = 0
    ) -> store_pb2.BeginUploadResponse:
        """`attempt` 0: a newer one than any before."""
        request = store_pb2.BeginUploadRequest(
            version=adapter_pb2.VersionRef(adapter=self._adapter, run=self._run, number=number),
            attempt=attempt or time.time_ns() // 1_000_000,
            header=image.header,
            config_json=image.config_json,
            image_bytes=image.image_bytes,
            expected_digest=expected_digest,
        )
        return self._connection.call(self._connection.store.BeginUpload, request)

    def put(self, ticket: bytes, offset: int, data: bytes, checksum: bytes | None = None) -> None:
        """Sends bytes [offset, offset + len(data)), with their own checksum or the one given."""

        def requests() -> Iterator[transfer_pb2.PutRequest]:
            yield transfer_pb2.PutRequest(open=transfer_pb2.PutRequest.Open(ticket=ticket))
            at = offset
            while at < offset + len(data):
                end = min(offset + len(data), (at // CHUNK_BYTES + 1) * CHUNK_BYTES)
                piece = data[at - offset : end - offset]
                digest = checksum or xxhash.xxh3_128_digest(piece)
                yield transfer_pb2.PutRequest(chunk=transfer_pb2.Chunk(offset=at, data=piece, checksum=digest))
                at = end

        try:
            for _ in self._transfer.Put(requests(), timeout=30, metadata=self._connection.metadata()):
                pass
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error) from None

    def get(self, ticket: bytes) -> bytes:
        try:
            request = transfer_pb2.GetRequest(ticket=ticket)
            chunks = list(self._transfer.Get(request, timeout=30, metadata=self._connection.metadata()))
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error) from None
        return b"".join(c.chunk.data for c in chunks)

    def commit(self, upload_id: str) -> adapter_pb2.Version:
        request = store_pb2.CommitUploadRequest(upload_id=upload_id)
        version: adapter_pb2.Version = self._connection.call(self._connection.store.CommitUpload, request).version
        return version

    def open_fetch(self, number: int) -> store_pb2.OpenFetchResponse:
        ref = adapter_pb2.VersionRef(adapter=self._adapter, run=self._run, number=number)
        return self._connection.call(
            self._connection.store.OpenFetch, store_pb2.OpenFetchRequest(version=ref)
        )

    def publish(self, number: int, image: RawImage, expected_digest: str = "") -> adapter_pb2.Version:
        begun = self.begin(number, image, expected_digest)
        if begun.HasField("stored"):
            return begun.stored
        for span in begun.missing:
            self.put(begun.ticket, span.offset, image.data[span.offset : span.offset + span.length])
        return self.commit(begun.upload_id)

    def close(self) -> None:
        self._connection.close()
