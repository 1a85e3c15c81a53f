"""What the daemon promises whoever asks it, whatever kind of machine they ask for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from herder.api.machines.hosts import machine_credential
from herder.machine.driver import State
from herder.machine.errors import MachineError, PreCreateFailed, ServerGone, Unreachable
from herder.machine.host import places, sockets
from herder.machine.host.client import HostClient
from herder.machine.host.daemon import AlreadyRunning, Daemon
from tests.unit.machine.host.scripted import PLACE, Scripted, daemon


@pytest.fixture
def kind() -> Scripted:
    return Scripted()


async def test_a_machine_is_created_found_stopped_started_and_removed(tmp_path: Path, kind: Scripted) -> None:
    async with daemon(tmp_path, kind) as here:
        machine, said = here.machine(), list[str]()
        assert await asyncio.to_thread(machine.state) == State.NOT_FOUND
        assert await here.create(machine, said.append) == PLACE
        assert said == ["half way"]
        assert await asyncio.to_thread(machine.state) == State.RUNNING
        assert await asyncio.to_thread(machine.place) == PLACE
        await asyncio.to_thread(machine.stop)
        assert await asyncio.to_thread(machine.state) == State.STOPPED
        await asyncio.to_thread(machine.start)
        await asyncio.to_thread(machine.restart)
        await asyncio.to_thread(machine.kill)
        await asyncio.to_thread(machine.remove)
        assert await asyncio.to_thread(machine.state) == State.NOT_FOUND
        assert await asyncio.to_thread(here.client.machines) == []
    assert kind.asked == {"prepare": 1, "create": 1, "stop": 2, "start": 2, "kill": 1, "remove": 1, "close": 1}
    assert list((tmp_path / places.MACHINES).iterdir()) == list((tmp_path / places.REMOVED).iterdir()) == []


async def test_asked_again_with_the_same_token_it_is_the_same_machine(tmp_path: Path, kind: Scripted) -> None:
    async with daemon(tmp_path, kind) as here:
        await here.create(here.machine())
        assert await here.create(here.machine()) == PLACE
    assert kind.asked["create"] == 1


async def test_a_creation_that_was_begun_is_joined(tmp_path: Path, kind: Scripted) -> None:
    kind.go_on.clear()
    async with daemon(tmp_path, kind) as here:
        first = asyncio.create_task(here.create(here.machine()))
        await kind.began.wait()
        assert await asyncio.to_thread(here.machine().state) == State.STARTING
        second = asyncio.create_task(here.create(here.machine()))
        await asyncio.to_thread(here.client.version)
        kind.go_on.set()
        assert await first == await second == PLACE
    assert kind.asked["create"] == 1


async def test_whoever_goes_away_does_not_stop_what_was_begun(tmp_path: Path, kind: Scripted) -> None:
    kind.go_on.clear()
    async with daemon(tmp_path, kind) as here:
        line = creation_line(tmp_path)
        stream = await asyncio.to_thread(sockets.connected, places.socket_of(tmp_path), 5)
        stream.sendall(line)
        await kind.began.wait()
        stream.close()
        kind.go_on.set()
        assert await here.create(here.machine()) == PLACE
    assert kind.asked["create"] == 1


async def test_another_token_does_not_reach_a_machine_of_the_same_name(tmp_path: Path, kind: Scripted) -> None:
    async with daemon(tmp_path, kind) as here:
        mine, other = here.machine(), here.machine(token="another-token")
        await here.create(mine)
        with pytest.raises(MachineError, match="from another creation; remove it first"):
            await here.create(other)
        await asyncio.to_thread(other.remove)
        with pytest.raises(ServerGone):
            await asyncio.to_thread(other.stop)
        assert await asyncio.to_thread(other.state) == State.NOT_FOUND
        assert await asyncio.to_thread(mine.state) == State.RUNNING


async def test_a_failed_creation_is_tried_again_or_removed(tmp_path: Path, kind: Scripted) -> None:
    async with daemon(tmp_path, kind) as here:
        kind.fails = "no room"
        with pytest.raises(MachineError, match="no room"):
            await here.create(here.machine())
        assert await asyncio.to_thread(here.machine().state) == State.ERROR
        with pytest.raises(MachineError, match="not finished; create it again, or remove it"):
            await asyncio.to_thread(here.machine().start)
        kind.fails = ""
        assert await here.create(here.machine()) == PLACE


async def test_removal_breaks_off_a_creation(tmp_path: Path, kind: Scripted) -> None:
    kind.go_on.clear()
    async with daemon(tmp_path, kind) as here:
        creation = asyncio.create_task(here.create(here.machine()))
        await kind.began.wait()
        removal = asyncio.create_task(asyncio.to_thread(here.machine().remove))
        with pytest.raises(MachineError, match="was interrupted"):
            await creation
        kind.go_on.set()
        await removal
        assert await asyncio.to_thread(here.client.machines) == []


async def test_its_owner_can_remove_all_machines_at_once(tmp_path: Path, kind: Scripted) -> None:
    async with daemon(tmp_path, kind) as here:
        for name in ("m1", "m2"):
            await here.create(here.machine(name))
        await asyncio.to_thread(here.client.purge)
        assert await asyncio.to_thread(here.client.machines) == []
    assert kind.asked["remove"] == 2


async def test_a_removal_that_failed_can_be_asked_for_again(tmp_path: Path, kind: Scripted) -> None:
    async with daemon(tmp_path, kind) as here:
        await here.create(here.machine())
        kind.fails = "busy"
        with pytest.raises(MachineError, match="busy"):
            await asyncio.to_thread(here.machine().remove)
        with pytest.raises(MachineError, match="is being removed"):
            await here.create(here.machine())
        kind.fails = ""
        await asyncio.to_thread(here.machine().remove)
        await asyncio.to_thread(here.machine().remove)  # gone already: no error
        assert await asyncio.to_thread(here.client.machines) == []


async def test_what_cannot_be_made_here_is_said_before_anything_is_made(tmp_path: Path, kind: Scripted) -> None:
    async with daemon(tmp_path, kind) as here:
        with pytest.raises(PreCreateFailed, match=r"options\.size: no such size; choose another"):
            await asyncio.to_thread(here.machine().check, {"size": "impossible"})
        assert await asyncio.to_thread(here.client.machines) == []


async def test_creations_wait_for_a_turn_and_say_so(tmp_path: Path, kind: Scripted) -> None:
    kind.go_on.clear()
    async with daemon(tmp_path, kind, at_once=2) as here:
        said: list[str] = []
        creations = [asyncio.create_task(here.create(here.machine(f"m{n}"), said.append)) for n in range(6)]
        while len(said) < 6:
            await asyncio.sleep(0.01)
        kind.go_on.set()
        await asyncio.gather(*creations)
    assert kind.most_at_once == 2
    assert sum("Waiting for" in line for line in said) == 4


async def test_a_credential_opens_its_own_machine_and_nothing_else(tmp_path: Path, kind: Scripted) -> None:
    async with daemon(tmp_path, kind) as here:
        await here.create(here.machine())
        key = (tmp_path / places.KEY).read_bytes()
        assert (tmp_path / places.KEY).stat().st_mode & 0o777 == 0o600
        mine = HostClient(places.socket_of(tmp_path), lambda *_: machine_credential(key, "fleet", "m1"), patience=0)
        assert await asyncio.to_thread(mine.machine("process", "fleet", "m1", "wrong-token").state) == State.NOT_FOUND
        for refused in (
            mine.machine("process", "fleet", "m2", "wrong-token").state,
            mine.machine("process", "other", "m1", "wrong-token").state,
            mine.machines,
            mine.purge,
            mine.version,
            mine.shutdown,
        ):
            with pytest.raises(MachineError, match=r"credential|owner"):
                await asyncio.to_thread(refused)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"\n", "not a JSON object"),
        (b"[1]\n", "not a JSON object"),
        (b"\xff\xfe\n", "not a JSON object"),
        (b"{", "the request is incomplete"),
        (b'{"verb": "dance"}\n', 'verb: "dance" is none of'),
        (b'{"verb": 3}\n', "verb: must be a string"),
        (b'{"verb": "state", "name": "../../etc", "token": "12345678"}\n', 'name: "../../etc" does not have the form'),
        (b'{"verb": "state", "name": "m", "scope": "A/b", "token": "12345678"}\n', "scope: "),
        (b'{"verb": "state", "name": "m", "token": ""}\n', "token: "),
        (b'{"verb": "create", "name": "m", "token": "12345678", "options": 3}\n', "options: must be an object"),
        (b'{"verb": "create", "name": "m", "token": "12345678"}\n', "authorized_key: "),
        (b'{"verb": "state", "name": "m", "token": "12345678"}\n', "credential is not valid"),
        (b'{"verb": "state", "name": "m", "token": "12345678", "credential": "\\u00e9"}\n', "credential is not valid"),
        (b'{"verb": "version"}\n', "owner"),
        (b'"' + b"x" * (9 * 1024 * 1024) + b'"\n', "longer than"),
    ],
)
async def test_nonsense_gets_a_clear_answer(tmp_path: Path, kind: Scripted, line: bytes, error: str) -> None:
    async with daemon(tmp_path, kind):
        answer = await asyncio.to_thread(said_to, tmp_path, line)
        assert error in answer["error"]["message"]


async def test_a_second_daemon_does_not_get_the_directory(tmp_path: Path, kind: Scripted) -> None:
    async with daemon(tmp_path, kind):
        with pytest.raises(AlreadyRunning):
            await Daemon(tmp_path).run()


async def test_a_daemon_that_does_not_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / places.KEY).write_bytes(b"k")
    with pytest.raises(Unreachable, match="does not answer at"):
        await asyncio.to_thread(HostClient.of(tmp_path, patience=0).version)


async def test_sockets_may_lie_at_long_paths(tmp_path: Path, kind: Scripted) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    async with daemon(deep, kind) as here:
        assert await asyncio.to_thread(here.client.machines) == []


def creation_line(state_dir: Path) -> bytes:
    credential = machine_credential((state_dir / places.KEY).read_bytes(), "fleet", "m1")
    asked = {"verb": "create", "scope": "fleet", "name": "m1", "kind": "process", "token": "0123456789abcdef"}
    return json.dumps({**asked, "authorized_key": "ssh-ed25519 AAAA", "credential": credential}).encode() + b"\n"


def said_to(state_dir: Path, line: bytes) -> dict[str, dict[str, str]]:
    with sockets.connected(places.socket_of(state_dir), 10) as stream:
        try:
            stream.sendall(line)
            stream.shutdown(1)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has heard enough
        with stream.makefile("rb") as answers:
            told: dict[str, dict[str, str]] = json.loads(answers.readline())
            return told
