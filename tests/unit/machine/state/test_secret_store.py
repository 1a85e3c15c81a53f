"""Records in a Secret survive faults of the API server and never overwrite those of other processes."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from herder.engine.client.kubeconfig import RestConfig
from herder.machine.errors import MachineError, Unreachable
from herder.machine.state import archive
from herder.machine.state.kubernetes import SecretClient
from herder.machine.state.secret import SecretStore
from herder.machine.state.store import RecordConflict
from tests.unit.machine.state.secret_server import (
    Fault,
    Server,
    connection_closed,
    deleted,
    label_changed,
    lost_response,
    overwritten,
    respond,
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


def test_a_saved_record_is_loaded_by_the_next_process(server: Server) -> None:
    store_on(server).save("m1", FILES)
    assert server.stored() == {f"/store/machines/m1/{path}": data for path, data in FILES.items()}
    assert store_on(server).load("m1") == FILES


def test_a_save_is_a_get_and_a_put_and_an_unchanged_one_sends_nothing(server: Server) -> None:
    store = store_on(server)
    server.requests.clear()
    store.save("m1", FILES)
    assert server.requests == ["GET", "PUT"]
    store.save("m1", FILES)
    assert server.requests == ["GET", "PUT"]


@pytest.mark.parametrize(
    "faults",
    [
        [unavailable, unavailable, None, unavailable],
        [connection_closed, None, connection_closed],
        [None, lost_response],
        [None, label_changed],
        [label_changed, label_changed, None, lost_response],
    ],
    ids=["restarting", "hanging up", "an answer lost", "a conflict that is none", "one after the other"],
)
def test_a_save_survives_transient_faults(server: Server, faults: list[Fault | None]) -> None:
    store = store_on(server)
    server.faults = faults
    store.save("m1", FILES)
    assert store_on(server).load("m1") == FILES


def test_retries_back_off_and_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    store = store_on(server, pauses)
    clock = iter(range(0, 10_000, 40))
    monkeypatch.setattr("herder.machine.state.kubernetes.time.monotonic", lambda: float(next(clock)))
    server.faults = [unavailable] * 100
    with pytest.raises(Unreachable, match="answers 503 starting"):
        store.save("m1", FILES)
    assert pauses == sorted(pauses)
    assert max(pauses) <= 10


@pytest.mark.parametrize("when", [[overwritten], [None, overwritten]], ids=["before the look", "before the write"])
def test_a_record_written_by_another_process_is_not_overwritten(server: Server, when: list[Fault | None]) -> None:
    store = store_on(server)
    store.save("m1", FILES)
    server.faults = when
    with pytest.raises(RecordConflict, match="another process works on machine"):
        store.save("m1", {**FILES, "config.json": b"ours"})
    assert server.stored()["/store/machines/m1/config.json"] == b"theirs"


def test_the_secret_is_never_created(server: Server) -> None:
    server.secret = None
    with pytest.raises(
        MachineError, match=r"ns/state does not exist; create this Secret for the machine state, or select another"
    ):
        store_on(server)


@pytest.mark.parametrize("when", [[deleted], [None, deleted]], ids=["before the look", "before the write"])
def test_a_deleted_secret_is_reported_with_its_consequence(server: Server, when: list[Fault | None]) -> None:
    store = store_on(server)
    server.faults = when
    with pytest.raises(MachineError, match="deleted during an operation; check the provider for an instance"):
        store.save("m1", FILES)


@pytest.mark.parametrize("status", [401, 403])
def test_missing_permissions_are_reported(server: Server, status: int) -> None:
    server.faults = [lambda _, request: respond(request, status, {"message": "no"}) is None]
    with pytest.raises(MachineError, match="no; allow this user to get it"):
        store_on(server)


def test_other_keys_and_machines_are_kept(server: Server) -> None:
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
    assert server.secret["data"]["extractedConfig"]  # an empty archive, not an empty value


def test_a_record_keeps_its_path(server: Server) -> None:
    other = archive.pack({"/elsewhere/machines/m1/config.json": b"x"})
    server.change({"extractedConfig": base64.b64encode(other).decode()})
    store = store_on(server)
    store.save("m1", FILES)
    assert set(server.stored()) == {"/elsewhere/machines/m1/config.json", "/elsewhere/machines/m1/id_rsa"}
    assert store.directory("m1") == "/elsewhere/machines/m1"
