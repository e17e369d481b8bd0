"""A wire that can be cut: a TCP port on loopback which passes everything on to another.

    with Forwarder(service.address) as wire:
        wire.address                     # what the client is told
        wire.cut(); wire.heal()          # connections break and new ones are refused, as long as it is cut
        wire.cut_after(1 << 20)          # the same, by itself, once so many bytes have passed
    wire.freeze(); wire.heal()       # nothing passes, and nobody is told
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

CHUNK_BYTES = 1 << 16
DEADLINE_S = 10.0


class Forwarder:
    """Runs on a thread of its own; any thread may call. Closed by the end of the with block, or `close`."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._cut = False
        self._left: int | None = None  # bytes that pass before it is cut; None: all
        self.refused = 0  # connections that came while it was cut
        self._flows: asyncio.Event
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(DEADLINE_S)
        self.address = "127.0.0.1:{}".format(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        self._on_loop(self._break)

    def cut_after(self, byte_count: int) -> None:
        def lay() -> None:
            self._left = byte_count

        self._on_loop(lay)

    def freeze(self) -> None:
        self._on_loop(lambda: self._flows.clear())

    def heal(self) -> None:
        def mend() -> None:
            self._cut = False
            self._left = None
            self._flows.set()

        self._on_loop(mend)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.cut()
        self._on_loop(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_loop(self, step: Callable[[], object]) -> None:
        async def run() -> None:
            step()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(DEADLINE_S)

    def _break(self) -> None:
        self._cut = True
        self._flows.set()
        for writer in self._open:
            writer.transport.abort()

    async def _listen(self) -> asyncio.Server:
        self._flows = asyncio.Event()
        self._flows.set()
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._cut:
                self.refused += 1
                return
            there, back = await asyncio.open_connection(self._host, int(self._port))
            self._open.add(back)
            try:
                await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
            finally:
                self._open.discard(back)
                back.transport.abort()
        except OSError:
            pass  # nobody listens there, or one side is gone: so is the other
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._flows.wait()
            if self._left is not None:
                self._left -= len(data)
                if self._left < 0:
                    return self._break()
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()
