"""config.json: the words of the Go program, with what is only ours apart."""

from __future__ import annotations

import json

import pytest

from herder.machine.errors import MachineError
from herder.machine.state import archive, record
from herder.machine.state.record import Phase
from herder.machine.state.saved_machine import private_key, saved_machine

OF_GO = {
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


def files_of(config: object, **others: bytes) -> dict[str, bytes]:
    return {"config.json": json.dumps(config).encode(), **others}


def test_a_record_of_the_go_program_counts_as_finished() -> None:
    assert record.read("m1", files_of(OF_GO)).phase is Phase.CREATED


def test_what_we_do_not_know_is_kept() -> None:
    found = record.read("m1", files_of(OF_GO, id_rsa=b"key", **{"sub/file": b"x"}))
    written = record.write(found)
    assert {key: value for key, value in json.loads(written["config.json"]).items() if key != "Herder"} == OF_GO
    assert (written["id_rsa"], written["sub/file"]) == (b"key", b"x")


def test_phases_survive() -> None:
    made = record.new_record("m1", "generic", "/store", script_path="/s", hostname="h")
    made.attempt = 7
    again = record.read("m1", record.write(made))
    assert (again.phase, again.attempt, again.driver) == (Phase.CREATING, 7, "generic")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "missing or damaged"),
        ({"config.json": b"{"}, "missing or damaged"),
        (files_of({"ConfigVersion": 3, "Driver": None, "DriverName": "x"}), "missing or damaged"),
        (files_of({**OF_GO, "ConfigVersion": 1}), "ConfigVersion 1, not 3"),
    ],
    ids=["no file", "cut", "no driver", "old"],
)
def test_what_cannot_be_read_says_so(files: dict[str, bytes], told: str) -> None:
    with pytest.raises(MachineError, match=told):
        record.read("m1", files)


class TestReadingForWhoWantsToGetIn:
    def archive(self, *names: str) -> bytes:
        files = {"config.json": json.dumps(OF_GO).encode(), "special": b"the key", "id_rsa": b"another"}
        return archive.pack({f"/any/where/machines/{n}/{path}": data for n in names for path, data in files.items()})

    def test_address_user_port_and_key(self) -> None:
        saved = saved_machine(self.archive("m1"))
        assert (saved.name, saved.driver) == ("m1", "amazonec2")
        assert (saved.reach.host, saved.reach.user, saved.reach.port) == ("192.0.2.7", "ubuntu", 2222)
        assert private_key(saved.config, saved.files) == b"the key"

    def test_of_several_one_must_be_named(self) -> None:
        assert saved_machine(self.archive("m1", "m2"), "m2").name == "m2"
        with pytest.raises(MachineError, match="2 machines instead of one"):
            saved_machine(self.archive("m1", "m2"))

    def test_none_yet(self) -> None:
        with pytest.raises(MachineError, match="empty until the creation of the machine starts"):
            saved_machine(b"", "m1")
