"""config.json: the fields of the Go program, and Herder's own fields in a separate object."""

from __future__ import annotations

import json

import pytest

from herder.machine.errors import MachineError
from herder.machine.state import archive, record
from herder.machine.state.record import Phase
from herder.machine.state.saved_machine import private_key, saved_machine

GO_RECORD = {
    "ConfigVersion": 3,
    "Driver": {
        "IPAddress": "192.0.2.7",
        "SSHUser": "ubuntu",
        "SSHPort": 2222,
        "SSHKeyPath": "/a/b/special",
        "New": [1],
    },
    "DriverName": "amazonec2",
    "HostOptions": {"CustomInstallScript": "/x", "Future": True},
    "Name": "m1",
    "Later": {"added": 1},
}


def files_of(config: object, **other_files: bytes) -> dict[str, bytes]:
    return {"config.json": json.dumps(config).encode(), **other_files}


def test_a_record_of_the_go_program_is_complete() -> None:
    assert record.read("m1", files_of(GO_RECORD)).phase is Phase.CREATED


def test_unknown_fields_are_kept() -> None:
    loaded = record.read("m1", files_of(GO_RECORD, id_rsa=b"key", **{"sub/file": b"x"}))
    written = record.write(loaded)
    assert {key: value for key, value in json.loads(written["config.json"]).items() if key != "Herder"} == GO_RECORD
    assert (written["id_rsa"], written["sub/file"]) == (b"key", b"x")


def test_phases_are_stored() -> None:
    created = record.new_record("m1", "generic", "/store", script_path="/s", hostname="h")
    created.attempt = 7
    reloaded = record.read("m1", record.write(created))
    assert (reloaded.phase, reloaded.attempt, reloaded.driver) == (Phase.CREATING, 7, "generic")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "missing or damaged"),
        ({"config.json": b"{"}, "missing or damaged"),
        (files_of({"ConfigVersion": 3, "Driver": None, "DriverName": "x"}), "missing or damaged"),
        (files_of({**GO_RECORD, "ConfigVersion": 1}), "ConfigVersion 1, not 3"),
    ],
    ids=["no file", "cut", "no driver", "old"],
)
def test_unreadable_records_are_reported(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(MachineError, match=message):
        record.read("m1", files)


class TestSshAccess:
    def archive(self, *names: str) -> bytes:
        files = {"config.json": json.dumps(GO_RECORD).encode(), "special": b"the key", "id_rsa": b"another"}
        return archive.pack({f"/any/where/machines/{n}/{path}": data for n in names for path, data in files.items()})

    def test_address_user_port_and_key_are_read(self) -> None:
        saved = saved_machine(self.archive("m1"))
        assert (saved.name, saved.driver) == ("m1", "amazonec2")
        assert (saved.reach.host, saved.reach.user, saved.reach.port) == ("192.0.2.7", "ubuntu", 2222)
        assert private_key(saved.config, saved.files) == b"the key"

    def test_one_of_several_machines_must_be_named(self) -> None:
        assert saved_machine(self.archive("m1", "m2"), "m2").name == "m2"
        with pytest.raises(MachineError, match="2 machines instead of one"):
            saved_machine(self.archive("m1", "m2"))

    def test_a_secret_without_machines_is_reported(self) -> None:
        with pytest.raises(MachineError, match="empty until the creation of the machine starts"):
            saved_machine(b"", "m1")


@pytest.mark.parametrize(
    "fields",
    [
        {"Driver": {"SSHPort": "x"}},
        {"Driver": {"SSHPort": [1]}},
        {"Driver": {"SSHPort": 1e999}},
        {"Driver": {"SSHPort": 65536}},
        {"Herder": {"Phase": "other"}},
        {"Herder": {"Attempt": "x"}},
        {"Herder": [1]},
    ],
    ids=str,
)
def test_a_state_with_invalid_values_is_an_error(fields: dict[str, object]) -> None:
    """Editors of the namespace write it, and administrators read it with `herder ssh`."""
    content = {"ConfigVersion": 3, "Driver": {}, "DriverName": "generic", **fields}
    with pytest.raises(MachineError):
        saved_machine(archive.pack({"/store/machines/one/config.json": json.dumps(content).encode()}))


def test_a_state_that_is_nested_too_deeply_is_an_error() -> None:
    with pytest.raises(MachineError, match="damaged"):
        saved_machine(archive.pack({"/store/machines/one/config.json": b"[" * 100_000}))
