"""A fake API server with one Secret and injected faults."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from herder.machine.state import archive

Fault = Callable[["Server", BaseHTTPRequestHandler], bool]


class Server:
    """Serves one Secret with optimistic concurrency; each request takes the next fault from the list."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] | None = {"metadata": {"name": "state", "resourceVersion": "1"}}
        self.requests: list[str] = []
        self.faults: list[Fault | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.handle(self)

            do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.requests.append(request.command)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and fault is not lost_response and fault(self, request):
            return None
        if self.secret is None:
            return respond(request, 404, {"message": "not found"})
        if request.command == "PUT":
            requested = json.loads(body)
            if requested["metadata"]["resourceVersion"] != self.secret["metadata"]["resourceVersion"]:
                return respond(request, 409, {"message": "the object has been modified"})
            self.change(requested.get("data") or {})
        if fault is lost_response:
            request.close_connection = True
            return None
        return respond(request, 200, self.secret)

    def change(self, data: dict[str, str]) -> None:
        assert self.secret is not None
        version = str(int(self.secret["metadata"]["resourceVersion"]) + 1)
        self.secret = {"metadata": {"name": "state", "resourceVersion": version}, "data": data}

    def stored(self) -> dict[str, bytes]:
        assert self.secret is not None
        return archive.unpack(base64.b64decode(self.secret.get("data", {}).get("extractedConfig", "")))

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self._thread.join()


def respond(request: BaseHTTPRequestHandler, status: int, body: object) -> None:
    content = json.dumps(body).encode()
    request.send_response(status)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)


def unavailable(_: Server, request: BaseHTTPRequestHandler) -> bool:
    respond(request, 503, {"message": "starting"})
    return True


def connection_closed(_: Server, request: BaseHTTPRequestHandler) -> bool:
    request.close_connection = True
    return True


def lost_response(_: Server, __: BaseHTTPRequestHandler) -> bool:
    raise AssertionError("done by the server after the write")


def label_changed(server: Server, _: BaseHTTPRequestHandler) -> bool:
    """Change an unrelated part of the Secret just before the request."""
    assert server.secret is not None
    server.change(server.secret.get("data") or {})
    return False


def deleted(server: Server, _: BaseHTTPRequestHandler) -> bool:
    server.secret = None
    return False


def overwritten(server: Server, _: BaseHTTPRequestHandler) -> bool:
    other = archive.pack({"/store/machines/m1/config.json": b"theirs"})
    server.change({"extractedConfig": base64.b64encode(other).decode()})
    return False
