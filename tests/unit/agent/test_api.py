"""The connection to the API server: kept, noticed when it was closed, and asked in one piece."""

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

ANSWER = {"metadata": {"uid": "u", "resourceVersion": "7"}, "data": {"plan-state": "c3VjY2VlZGVk"}}
SECRET = Secret("u", "6", {}, {"metadata": {"name": "plan"}})


class Server:
    """Answers everything with the same Secret, and notes in how many pieces each request came."""

    def __init__(self, answers_per_connection: int) -> None:
        self._answers = answers_per_connection
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.requests: list[list[bytes]] = []
        self.closed = threading.Semaphore(0)  # one for each connection that was closed here
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                for _ in range(self._answers):
                    if not self._answer(connection):
                        break
            self.closed.release()

    def _answer(self, connection: socket.socket) -> bool:
        pieces: list[bytes] = []
        while not _is_whole(b"".join(pieces)):
            piece = connection.recv(1 << 16)
            if not piece:
                return False
            pieces.append(piece)
        self.requests.append(pieces)
        body = json.dumps(ANSWER).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._listener.close()


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return bool(end) and len(body) >= sum(lengths)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server(answers_per_connection=2)
    yield found
    found.close()


@pytest.fixture
def api(server: Server) -> Iterator[client.Api]:
    with closing(client.Api(Access(server.url, "", b"", False, "", "", "", b"", b"", ""), "n", "plan")) as found:
        yield found


def test_head_and_body_of_a_write_are_sent_as_one(server: Server, api: client.Api) -> None:
    written = api.update(SECRET, {"plan-state": b"in-progress"})
    assert (written.version, written.data) == ("7", {"plan-state": b"succeeded"})
    assert [len(pieces) for pieces in server.requests] == [1]


def test_a_write_finds_out_that_the_server_has_closed_the_connection_meanwhile(server: Server, api: client.Api) -> None:
    """Without waiting and asking again: nobody knows of a write that failed whether it was done."""
    for _ in range(2):
        api.update(SECRET, {})
    assert server.closed.acquire(timeout=10)
    assert api.update(SECRET, {}).version == "7"
    assert server.connections == 2


def test_nobody_there_is_told_with_its_reason(server: Server, api: client.Api) -> None:
    server.close()
    with pytest.raises(client.Unreachable, match="ConnectionRefusedError"):
        api.update(SECRET, {})
