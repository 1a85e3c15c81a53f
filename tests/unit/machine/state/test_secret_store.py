"""Records in a Secret: never lost, never over somebody else's, whatever the API server goes through."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from herder.engine.client.kubeconfig import RestConfig
from herder.machine.errors import MachineError, Unreachable
from herder.machine.state import archive
from herder.machine.state.kubernetes import SecretClient
from herder.machine.state.secret import SecretStore
from herder.machine.state.store import Overtaken
from tests.unit.machine.state.secret_server import (
    Mishap,
    Server,
    answer,
    deleted,
    hung_up,
    labelled,
    lost_answer,
    overwritten,
    unavailable,
)

FILES = {"config.json": b"{}", "id_rsa": b"key"}


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def store_on(server: Server, pauses: list[float] | None = None) -> SecretStore:
    paused = pauses if pauses is not None else []
    client = SecretClient(RestConfig(server.url), "ns", "state", pause=paused.append)
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
    with pytest.raises(
        MachineError, match=r"ns/state does not exist; create this Secret for the machine state, or select another"
    ):
        store_on(server)


@pytest.mark.parametrize("when", [[deleted], [None, deleted]], ids=["before the look", "before the write"])
def test_a_secret_that_vanishes_is_told_with_what_it_means(server: Server, when: list[Mishap | None]) -> None:
    store = store_on(server)
    server.mishaps = when
    with pytest.raises(MachineError, match="deleted during an operation; check the provider for an instance"):
        store.save("m1", FILES)


@pytest.mark.parametrize("status", [401, 403])
def test_missing_rights_are_told(server: Server, status: int) -> None:
    server.mishaps = [lambda _, request: answer(request, status, {"message": "no"}) is None]
    with pytest.raises(MachineError, match="no; allow this user to get it"):
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
