"""Records in a Secret: never lost, never over somebody else's, whatever the API server goes through."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from herder.engine.client.kubeconfig import Connection
from herder.machine.errors import MachineError, Unreachable
from herder.machine.state import archive
from herder.machine.state.kubernetes import SecretClient
from herder.machine.state.secret import SecretStore
from herder.machine.state.store import Overtaken

FILES = {"config.json": b"{}", "id_rsa": b"key"}
Mishap = Callable[["Server", BaseHTTPRequestHandler], bool]


class Server:
    """One Secret with optimistic concurrency, and what goes wrong next: each request takes one mishap from the list."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] | None = {"metadata": {"name": "state", "resourceVersion": "1"}}
        self.requests: list[str] = []
        self.mishaps: list[Mishap | None] = []
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
        mishap = self.mishaps.pop(0) if self.mishaps else None
        if mishap is not None and mishap is not lost_answer and mishap(self, request):
            return None
        if self.secret is None:
            return answer(request, 404, {"message": "not found"})
        if request.command == "PUT":
            wanted = json.loads(body)
            if wanted["metadata"]["resourceVersion"] != self.secret["metadata"]["resourceVersion"]:
                return answer(request, 409, {"message": "the object has been modified"})
            self.change(wanted.get("data") or {})
        if mishap is lost_answer:
            request.close_connection = True
            return None
        return answer(request, 200, self.secret)

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


def answer(request: BaseHTTPRequestHandler, status: int, body: object) -> None:
    content = json.dumps(body).encode()
    request.send_response(status)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)


def unavailable(_: Server, request: BaseHTTPRequestHandler) -> bool:
    answer(request, 503, {"message": "starting"})
    return True


def hung_up(_: Server, request: BaseHTTPRequestHandler) -> bool:
    request.close_connection = True
    return True


def lost_answer(_: Server, __: BaseHTTPRequestHandler) -> bool:
    raise AssertionError("done by the server after the write")


def labelled(server: Server, _: BaseHTTPRequestHandler) -> bool:
    """Somebody changes something else of the Secret, just before."""
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


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def store_on(server: Server, pauses: list[float] | None = None) -> SecretStore:
    paused = pauses if pauses is not None else []
    client = SecretClient(Connection(server.url), "ns", "state", pause=paused.append)
    return SecretStore(client, "/store")


def test_what_is_saved_is_loaded_by_the_next_process(server: Server) -> None:
    store_on(server).save("m1", FILES)
    assert server.stored() == {f"/store/machines/m1/{path}": data for path, data in FILES.items()}
    assert store_on(server).load("m1") == FILES


def test_a_save_is_a_get_and_a_put_and_nothing_where_nothing_changed(server: Server) -> None:
    store = store_on(server)
    server.requests.clear()
    store.save("m1", FILES)
    assert server.requests == ["GET", "PUT"]
    store.save("m1", FILES)
    assert server.requests == ["GET", "PUT"]


@pytest.mark.parametrize(
    "mishaps",
    [
        [unavailable, unavailable, None, unavailable],
        [hung_up, None, hung_up],
        [None, lost_answer],
        [None, labelled],
        [labelled, labelled, None, lost_answer],
    ],
    ids=["restarting", "hanging up", "an answer lost", "a conflict that is none", "one after the other"],
)
def test_a_save_outlasts_what_passes(server: Server, mishaps: list[Mishap | None]) -> None:
    store = store_on(server)
    server.mishaps = mishaps
    store.save("m1", FILES)
    assert store_on(server).load("m1") == FILES


def test_waiting_grows_and_ends(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    store = store_on(server, pauses)
    clock = iter(range(0, 10_000, 40))
    monkeypatch.setattr("herder.machine.state.kubernetes.time.monotonic", lambda: float(next(clock)))
    server.mishaps = [unavailable] * 100
    with pytest.raises(Unreachable, match="answers 503 starting"):
        store.save("m1", FILES)
    assert pauses == sorted(pauses)
    assert max(pauses) <= 10


@pytest.mark.parametrize("when", [[overwritten], [None, overwritten]], ids=["before the look", "before the write"])
def test_a_record_that_somebody_else_wrote_is_not_overwritten(server: Server, when: list[Mishap | None]) -> None:
    store = store_on(server)
    store.save("m1", FILES)
    server.mishaps = when
    with pytest.raises(Overtaken, match="another process works on machine"):
        store.save("m1", {**FILES, "config.json": b"ours"})
    assert server.stored()["/store/machines/m1/config.json"] == b"theirs"


def test_the_secret_is_never_made(server: Server) -> None:
    server.secret = None
    with pytest.raises(MachineError, match=r"ns/state does not exist: .* create it, or name the right one"):
        store_on(server)


@pytest.mark.parametrize("when", [[deleted], [None, deleted]], ids=["before the look", "before the write"])
def test_a_secret_that_vanishes_is_told_with_what_it_means(server: Server, when: list[Mishap | None]) -> None:
    store = store_on(server)
    server.mishaps = when
    with pytest.raises(MachineError, match="deleted while a machine was worked on, whose server may still exist"):
        store.save("m1", FILES)


@pytest.mark.parametrize("status", [401, 403])
def test_missing_rights_are_told(server: Server, status: int) -> None:
    server.mishaps = [lambda _, request: answer(request, status, {"message": "no"}) is None]
    with pytest.raises(MachineError, match="no: allow this user to get it"):
        store_on(server)


def test_other_keys_and_other_machines_stay(server: Server) -> None:
    server.change({"other": "eA=="})
    store = store_on(server)
    store.save("m1", FILES)
    store.save("m2", FILES)
    store.remove("m1")
    assert store.names() == ["m2"]
    assert server.secret is not None
    assert server.secret["data"]["other"] == "eA=="
    store.remove("m2")
    assert server.stored() == {}
    assert server.secret["data"]["extractedConfig"]  # an archive of nothing, not nothing


def test_a_record_stays_under_the_path_it_has(server: Server) -> None:
    other = archive.pack({"/elsewhere/machines/m1/config.json": b"x"})
    server.change({"extractedConfig": base64.b64encode(other).decode()})
    store = store_on(server)
    store.save("m1", FILES)
    assert set(server.stored()) == {"/elsewhere/machines/m1/config.json", "/elsewhere/machines/m1/id_rsa"}
    assert store.directory("m1") == "/elsewhere/machines/m1"
