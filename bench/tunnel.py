"""The tunnel compared with Go's remotedialer: every pairing of servers and clients, on loopback without TLS.

Each part is a separate process: the dial target (Go in all pairings), the client, the server with a forwarded TCP port,
and the reader. Herder's server and client are started as `python -m bench.tunnel server|client …`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from peers import build

SECONDS = 4.0
ROUNDS = 3
STREAMS = 50
STALLED = 8  # readers that read nothing
REQUEST = b"x" * 100
KEY, TOKEN = "bench", "bench"
PAIRS = (("go", "go"), ("ours", "ours"), ("ours", "go"), ("go", "ours"))


@dataclass
class Result:
    server: str
    client: str
    one: float = 0.0  # MB/s
    many: float = 0.0
    server_cpu: float = 0.0  # seconds per GB
    client_cpu: float = 0.0
    connections: float = 0.0  # per second
    idle: tuple[float, float] = (0.0, 0.0)  # ms, p50 and p99
    busy: tuple[float, float] = (0.0, 0.0)
    busy_many: tuple[float, float] = (0.0, 0.0)
    stalled: tuple[float, float] = (0.0, 0.0)  # additional MB of server and client


def run(directory: Path) -> str:
    """Measure each pairing several times, interleaved, so that other load affects all pairings equally."""
    rounds = [[measure(server, client) for server, client in PAIRS] for _ in range(ROUNDS)]
    return report([median(results) for results in zip(*rounds, strict=True)])


def median(results: tuple[Result, ...]) -> Result:
    """Return the median of each number."""

    def one(number: Callable[[Result], float]) -> float:
        return statistics.median(map(number, results))

    def both(numbers: Callable[[Result], tuple[float, float]]) -> tuple[float, float]:
        return one(lambda r: numbers(r)[0]), one(lambda r: numbers(r)[1])

    return Result(
        results[0].server,
        results[0].client,
        one(lambda r: r.one),
        one(lambda r: r.many),
        one(lambda r: r.server_cpu),
        one(lambda r: r.client_cpu),
        one(lambda r: r.connections),
        both(lambda r: r.idle),
        both(lambda r: r.busy),
        both(lambda r: r.busy_many),
        both(lambda r: r.stalled),
    )


def report(results: list[Result]) -> str:
    lines = [
        "## Tunnel",
        "",
        f"Loopback, no TLS, {SECONDS:.0f} s each, the median of {ROUNDS} interleaved runs; load averages: {load()}.",
        f"A request: {len(REQUEST)} bytes in both directions on an open stream;",
        f"busy: beside one bulk transfer; very busy: beside {STREAMS}. Stalled: {STALLED} transfers without a reader.",
        "",
        f"| server | client | MB/s, 1 stream | {STREAMS} streams | CPU s/GB, server | client | connections/s "
        "| idle p50, ms | p99 | busy p50 | p99 | very busy p50 | p99 | stalled, MB server | client |",
        "|" + "---|" * 15,
    ]
    for r in results:
        numbers = [
            f"{r.one:.0f}",
            f"{r.many:.0f}",
            f"{r.server_cpu:.1f}",
            f"{r.client_cpu:.1f}",
            f"{r.connections:.0f}",
        ]
        numbers += [f"{value:.2f}" for pair in (r.idle, r.busy, r.busy_many) for value in pair]
        numbers += [f"{value:.0f}" for value in r.stalled]
        lines.append("| " + " | ".join([r.server, r.client, *numbers]) + " |")
    return "\n".join([*lines, "", *ratios(results[0], results[1])]) + "\n"


def ratios(go: Result, ours: Result) -> list[str]:
    one, many, opened = ours.one / go.one, ours.many / go.many, ours.connections / go.connections
    cpu = (ours.server_cpu + ours.client_cpu) / (go.server_cpu + go.client_cpu)
    busy, very_busy = ours.busy[1] / go.busy[1], ours.busy_many[1] / go.busy_many[1]
    return [
        f"Ours at both ends against Go's at both ends: {one:.1f} and {many:.1f} times the throughput (goal: 1.5) with",
        f"{cpu:.2f} of the CPU, and {opened:.1f} times the connections. The p99 of a request is",
        f"{busy:.2f} of Go's beside one transfer and {very_busy:.2f} beside {STREAMS} (goal: 0.2).",
    ]


def measure(server: str, client: str) -> Result:
    with Tunnel(server, client) as tunnel:
        result = Result(server, client)
        result.one, _, _ = tunnel.throughput(1)
        result.many, result.server_cpu, result.client_cpu = tunnel.throughput(STREAMS)
        result.connections = tunnel.connections()
        result.idle = tunnel.latency()
        with tunnel.bulk(1):
            result.busy = tunnel.latency()
        with tunnel.bulk(STREAMS):
            result.busy_many = tunnel.latency()
        result.stalled = tunnel.stalled()
        return result


class Tunnel:
    """A tunnel of one server and one client, with its dial targets."""

    def __init__(self, server: str, client: str) -> None:
        self._stack = contextlib.ExitStack()
        self._server, self._client = server, client

    def __enter__(self) -> Tunnel:
        listen, echo, source, self._echo, self._source = free_ports(5)
        go_server = build.path_of("remotedialer-server")
        self._start(go_server, "-echo", local(echo), "-source", local(source))
        ours = (sys.executable, "-m", "bench.tunnel")
        forwards = [f"{KEY}={local(self._echo)}={local(echo)}", f"{KEY}={local(self._source)}={local(source)}"]
        arguments = ["-listen", local(listen), "-token", TOKEN, *(w for f in forwards for w in ("-forward", f))]
        self._server_pid = self._start(*((go_server,) if self._server == "go" else (*ours, "server")), *arguments)
        headers = ["-header", f"X-API-Tunnel-Token: {TOKEN}", "-header", f"X-Tunnel-Key: {KEY}"]
        arguments = ["-url", f"ws://{local(listen)}/connect", "-retry", "100ms", *headers]
        client = (build.path_of("remotedialer-client"),) if self._client == "go" else (*ours, "client")
        self._client_pid = self._start(*client, *arguments)
        self._wait_until_up()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _start(self, *command: object) -> int:
        process = subprocess.Popen([str(word) for word in command], stderr=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return process.pid

    def _wait_until_up(self) -> None:
        for _ in range(500):
            with contextlib.suppress(OSError), connected(self._echo) as sock:
                if request_succeeds(sock):
                    return
            time.sleep(0.02)
        raise RuntimeError(f"the tunnel of {self._server} and {self._client} did not become ready")

    def throughput(self, streams: int) -> tuple[float, float, float]:
        """MB/s, and CPU seconds per GB of server and client."""
        with self.bulk(streams) as bulk:
            time.sleep(0.5)
            before = (bulk.received(), cpu(self._server_pid), cpu(self._client_pid), time.monotonic())
            time.sleep(SECONDS)
            after = (bulk.received(), cpu(self._server_pid), cpu(self._client_pid), time.monotonic())
        size, server, client, seconds = (b - a for a, b in zip(before, after, strict=True))
        return size / 1e6 / seconds, server / (size / 1e9), client / (size / 1e9)

    @contextlib.contextmanager
    def bulk(self, streams: int) -> Iterator[Bulk]:
        """Run transfers that another process reads at full speed."""
        command = (sys.executable, "-m", "bench.tunnel", "read", str(self._source), str(streams))
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        bulk = Bulk(process)
        try:
            bulk.received()
            yield bulk
        finally:
            process.kill()
            process.communicate()

    def connections(self) -> float:
        """Return connections per second, each used for one request, eight at a time."""
        until = time.monotonic() + SECONDS

        def work(_: int) -> int:
            done = 0
            while time.monotonic() < until:
                with connected(self._echo) as sock:
                    done += request_succeeds(sock)
            return done

        with ThreadPoolExecutor(8) as pool:
            return sum(pool.map(work, range(8))) / SECONDS

    def latency(self) -> tuple[float, float]:
        """p50 and p99 of a small request, in ms."""
        times = []
        until = time.monotonic() + SECONDS
        with connected(self._echo) as sock:
            while time.monotonic() < until:
                began = time.perf_counter()
                if not request_succeeds(sock):
                    raise RuntimeError("the tunnel broke")
                times.append((time.perf_counter() - began) * 1000)
                time.sleep(0.001)
        cuts = statistics.quantiles(times, n=100)
        return cuts[49], cuts[98]

    def stalled(self) -> tuple[float, float]:
        before = memory(self._server_pid), memory(self._client_pid)
        peaks = [0.0, 0.0]
        with contextlib.ExitStack() as stack:
            for _ in range(STALLED):
                stack.enter_context(connected(self._source, buffer=4096))
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                time.sleep(0.1)
                now = memory(self._server_pid), memory(self._client_pid)
                peaks = [max(m, n - b) for m, n, b in zip(peaks, now, before, strict=True)]
        return peaks[0], peaks[1]


class Bulk:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def received(self) -> int:
        """Return the bytes received so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


# --- helpers ------------------------------------------------------------------------------------------------------


def load() -> str:
    """Return the load averages of 1, 5 and 15 minutes."""
    return ", ".join(f"{average:.1f}" for average in os.getloadavg())


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def local(port: int) -> str:
    return f"127.0.0.1:{port}"


@contextlib.contextmanager
def connected(port: int, buffer: int = 0) -> Iterator[socket.socket]:
    with socket.socket() as sock:
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.connect(("127.0.0.1", port))
        yield sock


def request_succeeds(sock: socket.socket) -> bool:
    sock.sendall(REQUEST)
    response = b""
    while len(response) < len(REQUEST) and (chunk := sock.recv(len(REQUEST))):
        response += chunk
    return response == REQUEST


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> float:
    """Return the resident memory in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


# --- processes ----------------------------------------------------------------------------------------------------


def read(port: int, streams: int) -> None:
    """Read this many transfers at full speed; respond to each input line with the bytes received so far."""
    received = [0] * streams

    def drain(number: int) -> None:
        buffer = bytearray(1 << 18)
        with connected(port) as sock:
            while count := sock.recv_into(buffer):
                received[number] += count

    for number in range(streams):
        threading.Thread(target=drain, args=(number,), daemon=True).start()
    for _ in sys.stdin:
        print(sum(received), flush=True)


async def our_server(listen: str, forwards: list[str]) -> None:
    from herder.tunnel.pipe import Pipe
    from herder.tunnel.registry import Registry
    from herder.tunnel.server import serve

    registry = Registry()
    loop = asyncio.get_running_loop()
    servers = [await serve(registry, lambda headers: headers.get("x-tunnel-key"), *host_port(listen))]
    for forward in forwards:
        key, here, there = forward.split("=", 2)

        def forwarded(key: str = key, there: str = there) -> asyncio.Protocol:
            return Pipe(registry.dial_local(key, "tcp", there)) if registry.has(key) else Closed()

        servers.append(await loop.create_server(forwarded, *host_port(here)))
    await asyncio.gather(*(server.serve_forever() for server in servers))


class Closed(asyncio.Protocol):
    """Closes connections while no client is connected."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def our_client(url: str, headers: dict[str, str]) -> None:
    from herder.tunnel.client import Backoff, Target, TunnelClient

    await TunnelClient(
        lambda: Target(url, headers), lambda _, __: True, backoff=Backoff(first=0.1, max_delay=0.1)
    ).run()


def host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def main() -> None:
    import uvloop

    role, *arguments = sys.argv[1:]
    if role == "read":
        read(int(arguments[0]), int(arguments[1]))
        return
    parser = argparse.ArgumentParser()
    for flag in ("-listen", "-token", "-url", "-retry"):
        parser.add_argument(flag)
    parser.add_argument("-forward", action="append", default=[])
    parser.add_argument("-header", action="append", default=[])
    options = parser.parse_args(arguments)
    if role == "server":
        uvloop.run(our_server(options.listen, options.forward))
    else:
        uvloop.run(our_client(options.url, dict(header.split(": ", 1) for header in options.header)))


if __name__ == "__main__":
    main()
