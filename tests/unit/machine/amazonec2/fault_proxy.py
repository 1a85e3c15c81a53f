"""A proxy to the emulated cloud that rejects requests, runs callbacks before them, or cuts the connection.

After a cut, the program is killed before its request arrives or before the response returns.
"""

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

TIMEOUT_SECONDS = 60
Response = tuple[int, str, bytes]  # status, content type, content


class FaultProxy:
    """Sits between the program and the cloud. At request number `cut_at`, from 0, it stops responding."""

    def __init__(self, cloud_port: int) -> None:
        self._cloud_port = cloud_port
        self.actions: list[str] = []
        self.cut_at: int | None = None
        self.delivers_cut_request = False
        self.is_cut = threading.Event()
        self._rejections: dict[str, list[Response]] = defaultdict(list)
        self._call_before: dict[str, Callable[[], object]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reset(self) -> None:
        self.actions, self.cut_at = [], None
        self.is_cut.clear()

    def reject(self, action: str, code: str, message: str, *, status: int = 400, times: int = 1) -> None:
        """Reject the next requests for an action with an EC2 error."""
        error = f"<Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        response = f"<Response>{error}<RequestID>none</RequestID></Response>".encode()
        self._rejections[action] += [(status, "text/xml", response)] * times

    def call_before(self, action: str, callback: Callable[[], object]) -> None:
        """Run a callback once, before the next request for an action is delivered."""
        self._call_before[action] = callback

    def _respond(self, action: str, headers: dict[str, str], body: bytes) -> Response:
        if action in self._call_before:
            self._call_before.pop(action)()
        if self._rejections[action]:
            return self._rejections[action].pop(0)
        return self._deliver(headers, body)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                number = len(proxy.actions)
                action = parse_qs(body.decode())["Action"][0]
                proxy.actions.append(action)
                if number == proxy.cut_at:
                    if proxy.delivers_cut_request:
                        proxy._deliver(dict(self.headers), body)
                    proxy.is_cut.set()
                    self.rfile.read(1)  # send no response until the program is killed
                    self.close_connection = True
                    return
                status, content_type, response = proxy._respond(action, dict(self.headers), body)
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(response)))
                self.end_headers()
                self.wfile.write(response)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _deliver(self, headers: dict[str, str], body: bytes) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self._cloud_port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", "/", body, headers)
            response = connection.getresponse()
            return response.status, response.headers["Content-Type"], response.read()
        finally:
            connection.close()


_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    ["tests.unit.machine.amazonec2.preloaded", "herder.machine.cli.create", "herder.machine.drivers.amazonec2.server"]
)


class Program:
    """Runs `herder-machine`, each time in a new process forked from one that has loaded the libraries."""

    def __init__(self, proxy: FaultProxy, directory: Path) -> None:
        self.proxy = proxy
        self.store = directory / "store"
        self._log = directory / "log"

    def run(self, *arguments: str) -> None:
        """Run to the end; the exit status must be 0."""
        process = self._start(arguments)
        process.join(TIMEOUT_SECONDS)
        assert process.exitcode == 0, self._log.read_text()
        process.close()

    def kill_at(self, request: int, *arguments: str, delivered: bool) -> None:
        self.proxy.reset()
        self.proxy.cut_at, self.proxy.delivers_cut_request = request, delivered
        process = self._start(arguments)
        assert self.proxy.is_cut.wait(TIMEOUT_SECONDS), self._log.read_text()
        process.kill()
        process.join()
        process.close()
        self.proxy.reset()

    def _start(self, arguments: tuple[str, ...]) -> multiprocessing.process.BaseProcess:
        process = _forks.Process(target=_run, args=(["--storage-path", str(self.store), *arguments], str(self._log)))
        process.start()
        return process


def _run(arguments: list[str], log: str) -> None:
    with Path(log).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.exit(guarded(lambda: run(arguments, os.environ)))
