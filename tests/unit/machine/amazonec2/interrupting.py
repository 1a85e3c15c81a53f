"""A wire to the cloud on which requests are refused, delayed for something else to happen first, or cut: then the
program is killed, before its request arrives or before the answer comes back."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from herder.machine.cli.main import guarded, run

PATIENCE_SECONDS = 60
Answer = tuple[int, str, bytes]  # status, content type, content


class Wire:
    """Between the program and the cloud. `cut_at` names a request by its number, from 0; there it falls silent."""

    def __init__(self, cloud_port: int) -> None:
        self._cloud_port = cloud_port
        self.actions: list[str] = []
        self.cut_at: int | None = None
        self.delivers_last = False
        self.is_cut = threading.Event()
        self._refusals: dict[str, list[Answer]] = defaultdict(list)
        self._first: dict[str, Callable[[], object]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Wire:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def mend(self) -> None:
        self.actions, self.cut_at = [], None
        self.is_cut.clear()

    def refuse(self, action: str, code: str, message: str, *, status: int = 400, times: int = 1) -> None:
        """In the words of the cloud."""
        error = f"<Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        answer = f"<Response>{error}<RequestID>none</RequestID></Response>".encode()
        self._refusals[action] += [(status, "text/xml", answer)] * times

    def first(self, action: str, act: Callable[[], object]) -> None:
        """Done once, when such a request is on its way."""
        self._first[action] = act

    def _answer(self, action: str, headers: dict[str, str], body: bytes) -> Answer:
        if action in self._first:
            self._first.pop(action)()
        if self._refusals[action]:
            return self._refusals[action].pop(0)
        return self._deliver(headers, body)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        wire = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                number = len(wire.actions)
                action = parse_qs(body.decode())["Action"][0]
                wire.actions.append(action)
                if number == wire.cut_at:
                    if wire.delivers_last:
                        wire._deliver(dict(self.headers), body)
                    wire.is_cut.set()
                    self.rfile.read(1)  # nothing comes any more: until the program is dead
                    self.close_connection = True
                    return
                status, content_type, answer = wire._answer(action, dict(self.headers), body)
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _deliver(self, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._cloud_port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("POST", "/", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read()
        finally:
            connection.close()


_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    ["tests.unit.machine.amazonec2.preloaded", "herder.machine.cli.create", "herder.machine.drivers.amazonec2.server"]
)


class Program:
    """`herder-machine` in a process of its own each time. They are forked from one that has the libraries loaded."""

    def __init__(self, wire: Wire, directory: Path) -> None:
        self.wire = wire
        self.store = directory / "store"
        self._log = directory / "log"

    def run(self, *words: str) -> None:
        """To its end, which must be a good one."""
        process = self._start(words)
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == 0, self._log.read_text()
        process.close()

    def kill_at(self, request: int, *words: str, delivered: bool) -> None:
        self.wire.mend()
        self.wire.cut_at, self.wire.delivers_last = request, delivered
        process = self._start(words)
        assert self.wire.is_cut.wait(PATIENCE_SECONDS), self._log.read_text()
        process.kill()
        process.join()
        process.close()
        self.wire.mend()

    def _start(self, words: tuple[str, ...]) -> multiprocessing.process.BaseProcess:
        process = _forks.Process(target=_run, args=(["--storage-path", str(self.store), *words], str(self._log)))
        process.start()
        return process


def _run(words: list[str], log: str) -> None:
    with Path(log).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.exit(guarded(lambda: run(words, os.environ)))
