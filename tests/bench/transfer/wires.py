"""Wires that pass so many bytes a second, between a store and its proxies and trainer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from testing.forwarder import Forwarder
from testing.world import World


class SlowWire(Forwarder):
    """Passes so many bytes a second in each direction."""

    def __init__(self, target: str, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        super().__init__(target)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        free_at = loop.time()
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
            free_at = max(free_at, loop.time() - 0.01) + len(data) / self._bytes_s
            if (wait := free_at - loop.time()) > 0.002:
                await asyncio.sleep(wait)
        with contextlib.suppress(OSError):
            writer.write_eof()


def slow(stack: contextlib.ExitStack, bytes_s: float, **proxy_flags: str) -> Callable[[World], None]:
    """For `fleet`'s `prepare`: one wire to the store for each proxy, and one for the trainer."""

    def prepare(world: World) -> None:
        store = world.fleet.addresses()["store"]
        for proxy in world.fleet.proxies.values():
            wire = stack.enter_context(SlowWire(store, bytes_s))
            proxy.flags |= {"store": wire.address, "ucx": "false", **proxy_flags}
        world.fleet.store.flags["ucx"] = "false"
        trainer = {**world.fleet.addresses(), "store": stack.enter_context(SlowWire(store, bytes_s)).address}
        world.fleet.addresses = lambda: trainer

    return prepare
