"""The rounds of the door's benchmark: every case at every target, one after the other, and the table of their ratios.

`measure.py ROUNDS NAME=FAST_PORT,STREAM_PORT[,PID...] ...`: the pids are the target's processes, whose CPU seconds and resident memory
are its costs; the engine's own target (`direct`) has none. Ratios are medians of the ratios to nginx in the same round: what else the
machine does changes from round to round. Rounds are short, so that it meets both alike.
"""
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

SECONDS = 1  # of each run of wrk
TOKEN_IDS = 32_768
STREAMS, EVENTS, EVERY_S = 1_000, 20, 0.2
CASES = [("500 B, 1 connection", "short", 1), ("500 B, 16 connections", "short", 16), ("500 B, 128 connections", "short", 128),
         ("32k token ids, 8 connections", "ids", 8)]
WRK = """wrk.method = "POST"
wrk.path = "/v1/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.body = io.open("%s"):read("*a")
done = function(s, l)
  io.write(string.format("RESULT %%d %%d %%d %%d\\n", s.requests, s.duration, l:percentile(99),
                         s.errors.status + s.errors.connect + s.errors.read + s.errors.timeout))
end
"""


class Target:
    def __init__(self, text):
        self.name, numbers = text.split("=")
        self.fast, self.stream, *self.pids = [int(n) for n in numbers.split(",")]

    def cpu_s(self):
        """CPU seconds of all its processes so far: all of them, and those outside of the kernel."""
        user = kernel = 0
        for pid in self.pids:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            user, kernel = user + int(fields[11]), kernel + int(fields[12])
        ticks = os.sysconf("SC_CLK_TCK")
        return (user + kernel) / ticks, user / ticks

    def resident_kb(self):
        total = 0
        for pid in self.pids:
            with open(f"/proc/{pid}/statm") as f:
                total += int(f.read().split()[1])
        return total * os.sysconf("SC_PAGE_SIZE") / 1024


def scripts(folder):
    rng = random.Random(1)
    bodies = {"short": {"model": "policy", "prompt": "a" * 500, "max_tokens": 16},
              "ids": {"model": "policy", "prompt": [rng.randrange(128_000) for _ in range(TOKEN_IDS)], "max_tokens": 16}}
    for name, body in bodies.items():
        with open(f"{folder}/{name}.json", "w") as f:
            json.dump(body, f)
        with open(f"{folder}/{name}.lua", "w") as f:
            f.write(WRK % f"{folder}/{name}.json")


def requests(target, script, connections):
    """Requests/s, CPU seconds for 10,000 of them, how many of these outside of the kernel, p99 in ms."""
    all_before, user_before = target.cpu_s()
    said = subprocess.run(["wrk", "-t1", f"-c{connections}", f"-d{SECONDS}s", "-s", script, f"http://127.0.0.1:{target.fast}"],
                          check=True, capture_output=True, text=True).stdout
    done, duration_us, p99_us, errors = (int(n) for n in re.search(r"RESULT (\d+) (\d+) (\d+) (\d+)", said).groups())
    if errors or not done:
        raise SystemExit(f"{target.name}: {errors} errors in {done} requests")
    all_after, user_after = target.cpu_s()
    return {"requests/s": done / duration_us * 1e6, "CPU s per 10k": (all_after - all_before) / done * 1e4,
            "user CPU s": (user_after - user_before) / done * 1e4, "p99 ms": p99_us / 1e3}


async def one_stream(port, late):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"model":"policy","prompt":"a","stream":true}'
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    seen = 0
    while seen < EVENTS:
        line = await reader.readline()
        if not line:
            raise SystemExit("a stream ended early")
        if line.startswith(b"data: "):
            late.append(time.monotonic_ns() - int(line[6:]))
            seen += 1
    writer.close()


async def streams(target):
    """How late the events come in ms, CPU seconds for 10,000 of them, and kB that a stream takes while it runs."""
    late = []
    before_s, before_kb = target.cpu_s()[0], target.resident_kb()
    running = asyncio.gather(*(one_stream(target.stream, late) for _ in range(STREAMS)))
    await asyncio.sleep(EVENTS * EVERY_S / 2)
    kb = (target.resident_kb() - before_kb) / STREAMS
    await running
    late.sort()
    return {"p50 ms late": late[len(late) // 2] / 1e6, "p99 ms late": late[len(late) * 99 // 100] / 1e6,
            "CPU s per 10k": (target.cpu_s()[0] - before_s) / len(late) * 1e4, "kB a stream, new": kb}


def show(results, targets):
    print(f"{'case':31}{'figure':18}" + "".join(f"{t.name + ' (min median max)':>28}" for t in targets) + f"{'door / nginx':>14}")
    for (case, figure), by_target in results.items():
        row = f"{case:31}{figure:18}"
        for target in targets:
            values = by_target[target.name]
            cells = " ".join(f"{v:.3g}" if v < 100 else f"{v:.0f}" for v in (min(values), statistics.median(values), max(values)))
            row += f"{cells if target.pids or 'CPU' not in figure and 'kB' not in figure else '–':>28}"
        ratios = [door / nginx for door, nginx in zip(by_target["door"], by_target["nginx"], strict=True) if nginx > 0]
        print(row + (f"{statistics.median(ratios):>14.2f}" if ratios else f"{'–':>14}"))


def main():
    rounds, targets = int(sys.argv[1]), [Target(text) for text in sys.argv[2:]]
    results, loads = {}, []
    with tempfile.TemporaryDirectory() as folder:
        scripts(folder)
        for _ in range(rounds):
            loads.append(os.getloadavg()[0])
            for case, script, connections in CASES:
                for target in targets:
                    for figure, value in requests(target, f"{folder}/{script}.lua", connections).items():
                        results.setdefault((case, figure), {}).setdefault(target.name, []).append(value)
            for target in targets:
                for figure, value in asyncio.run(streams(target)).items():
                    results.setdefault((f"{STREAMS:,} streams", figure), {}).setdefault(target.name, []).append(value)
    show(results, targets)
    print(f"load of the machine, min median max: {min(loads):.1f} {statistics.median(loads):.1f} {max(loads):.1f}, on {os.cpu_count()} cores")


main()
