"""A tiny streaming engine on asyncio, and the client that times its chunks.

`engine.py serve` prints its port; POST answers an event stream of 40 chunks, one every 20 ms, each with the time of its
making. `engine.py measure PORT STREAMS` prints the p50 and p99 of chunk latency in microseconds.
"""
import asyncio
import sys
import time

CHUNKS, EVERY_S = 40, 0.02


async def handle(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    await reader.readexactly(int(line.split(b":")[1]))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(CHUNKS):
                await asyncio.sleep(EVERY_S)
                event = b"data: %d\n\n" % time.monotonic_ns()
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve():
    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def stream(port, late):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"model":"policy","prompt":"a","stream":true}'
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    seen = 0
    while seen < CHUNKS:
        line = await reader.readline()
        if not line:
            raise SystemExit("a stream ended early")
        if line.startswith(b"data: "):
            late.append(time.monotonic_ns() - int(line[6:]))
            seen += 1
    writer.close()


async def measure(port, streams):
    late = []
    await asyncio.gather(*(stream(port, late) for _ in range(streams)))
    late.sort()
    print(f"{late[len(late) // 2] / 1e3:.0f} {late[len(late) * 99 // 100] / 1e3:.0f}")


asyncio.run(serve() if sys.argv[1] == "serve" else measure(int(sys.argv[2]), int(sys.argv[3])))
