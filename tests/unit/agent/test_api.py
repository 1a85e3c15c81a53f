"""The agent's API client keeps its connection, notices when it was closed, and sends each request in one segment."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from herder.agent.core.events import Secret
from herder.agent.secret import client
from herder.agent.secret.kubeconfig import Access

RESPONSE = {"metadata": {"uid": "u", "resourceVersion": "7"}, "data": {"plan-state": "c3VjY2VlZGVk"}}
SECRET = Secret("u", "6", {}, {"metadata": {"name": "plan"}})


class Server:
    """Responds to every request with the same Secret, and records the chunks in which each request arrived."""

    def __init__(self, responses_per_connection: int) -> None:
        self._responses = responses_per_connection
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.requests: list[list[bytes]] = []
        self.closed = threading.Semaphore(0)  # released once for each connection that the server closed
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                for _ in range(self._responses):
                    if not self._respond(connection):
                        break
            self.closed.release()

    def _respond(self, connection: socket.socket) -> bool:
        chunks: list[bytes] = []
        while not _is_complete(b"".join(chunks)):
            chunk = connection.recv(1 << 16)
            if not chunk:
                return False
            chunks.append(chunk)
        self.requests.append(chunks)
        body = json.dumps(RESPONSE).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the blocked accept()
        self._listener.close()


def _is_complete(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return bool(end) and len(body) >= sum(lengths)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server(responses_per_connection=2)
    yield found
    found.close()


@pytest.fixture
def api(server: Server) -> Iterator[client.Api]:
    with closing(client.Api(Access(server.url, "", b"", False, "", "", "", b"", b"", ""), "n", "plan")) as found:
        yield found


def test_head_and_body_of_a_write_are_sent_in_one_segment(server: Server, api: client.Api) -> None:
    written = api.update(SECRET, {"plan-state": b"in-progress"})
    assert (written.version, written.data) == ("7", {"plan-state": b"succeeded"})
    assert [len(chunks) for chunks in server.requests] == [1]


def test_a_write_reconnects_if_the_server_closed_the_connection(server: Server, api: client.Api) -> None:
    """The client must notice before it sends: after a failed write, nothing tells whether the server applied it."""
    for _ in range(2):
        api.update(SECRET, {})
    assert server.closed.acquire(timeout=10)
    assert api.update(SECRET, {}).version == "7"
    assert server.connections == 2


def test_an_unreachable_server_is_reported_with_its_reason(server: Server, api: client.Api) -> None:
    server.close()
    with pytest.raises(client.Unreachable, match="ConnectionRefusedError"):
        api.update(SECRET, {})
