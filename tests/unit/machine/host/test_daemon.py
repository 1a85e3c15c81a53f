"""The daemon's API, independent of the kind of machine."""

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
from tests.unit.machine.host.scripted_kind import PLACE, ScriptedKind, daemon


@pytest.fixture
def kind() -> ScriptedKind:
    return ScriptedKind()


async def test_the_lifecycle_of_a_machine(tmp_path: Path, kind: ScriptedKind) -> None:
    async with daemon(tmp_path, kind) as host:
        machine, output = host.machine(), list[str]()
        assert await asyncio.to_thread(machine.state) == State.NOT_FOUND
        assert await host.create(machine, output.append) == PLACE
        assert output == ["half way"]
        assert await asyncio.to_thread(machine.state) == State.RUNNING
        assert await asyncio.to_thread(machine.place) == PLACE
        await asyncio.to_thread(machine.stop)
        assert await asyncio.to_thread(machine.state) == State.STOPPED
        await asyncio.to_thread(machine.start)
        await asyncio.to_thread(machine.restart)
        await asyncio.to_thread(machine.kill)
        await asyncio.to_thread(machine.remove)
        assert await asyncio.to_thread(machine.state) == State.NOT_FOUND
        assert await asyncio.to_thread(host.client.machines) == []
    assert kind.calls == {"prepare": 1, "create": 1, "stop": 2, "start": 2, "kill": 1, "remove": 1, "close": 1}
    assert list((tmp_path / places.MACHINES).iterdir()) == list((tmp_path / places.REMOVED).iterdir()) == []


async def test_a_repeated_create_with_the_same_token_returns_the_same_machine(
    tmp_path: Path, kind: ScriptedKind
) -> None:
    async with daemon(tmp_path, kind) as host:
        await host.create(host.machine())
        assert await host.create(host.machine()) == PLACE
    assert kind.calls["create"] == 1


async def test_a_second_create_joins_a_running_one(tmp_path: Path, kind: ScriptedKind) -> None:
    kind.resume.clear()
    async with daemon(tmp_path, kind) as host:
        first = asyncio.create_task(host.create(host.machine()))
        await kind.creation_started.wait()
        assert await asyncio.to_thread(host.machine().state) == State.STARTING
        second = asyncio.create_task(host.create(host.machine()))
        await asyncio.to_thread(host.client.version)
        kind.resume.set()
        assert await first == await second == PLACE
    assert kind.calls["create"] == 1


async def test_a_disconnected_client_does_not_stop_a_creation(tmp_path: Path, kind: ScriptedKind) -> None:
    kind.resume.clear()
    async with daemon(tmp_path, kind) as host:
        line = creation_line(tmp_path)
        stream = await asyncio.to_thread(sockets.connected, places.socket_of(tmp_path), 5)
        stream.sendall(line)
        await kind.creation_started.wait()
        stream.close()
        kind.resume.set()
        assert await host.create(host.machine()) == PLACE
    assert kind.calls["create"] == 1


async def test_another_token_cannot_access_a_machine_of_the_same_name(tmp_path: Path, kind: ScriptedKind) -> None:
    async with daemon(tmp_path, kind) as host:
        mine, other = host.machine(), host.machine(token="another-token")
        await host.create(mine)
        with pytest.raises(MachineError, match="from another creation; remove it first"):
            await host.create(other)
        await asyncio.to_thread(other.remove)
        with pytest.raises(ServerGone):
            await asyncio.to_thread(other.stop)
        assert await asyncio.to_thread(other.state) == State.NOT_FOUND
        assert await asyncio.to_thread(mine.state) == State.RUNNING


async def test_a_failed_creation_can_be_retried_or_removed(tmp_path: Path, kind: ScriptedKind) -> None:
    async with daemon(tmp_path, kind) as host:
        kind.error = "no room"
        with pytest.raises(MachineError, match="no room"):
            await host.create(host.machine())
        assert await asyncio.to_thread(host.machine().state) == State.ERROR
        with pytest.raises(MachineError, match="not finished; create it again, or remove it"):
            await asyncio.to_thread(host.machine().start)
        kind.error = ""
        assert await host.create(host.machine()) == PLACE


async def test_removal_cancels_a_creation(tmp_path: Path, kind: ScriptedKind) -> None:
    kind.resume.clear()
    async with daemon(tmp_path, kind) as host:
        creation = asyncio.create_task(host.create(host.machine()))
        await kind.creation_started.wait()
        removal = asyncio.create_task(asyncio.to_thread(host.machine().remove))
        with pytest.raises(MachineError, match="was interrupted"):
            await creation
        kind.resume.set()
        await removal
        assert await asyncio.to_thread(host.client.machines) == []


async def test_the_owner_can_remove_all_machines_at_once(tmp_path: Path, kind: ScriptedKind) -> None:
    async with daemon(tmp_path, kind) as host:
        for name in ("m1", "m2"):
            await host.create(host.machine(name))
        await asyncio.to_thread(host.client.purge)
        assert await asyncio.to_thread(host.client.machines) == []
    assert kind.calls["remove"] == 2


async def test_a_failed_removal_can_be_retried(tmp_path: Path, kind: ScriptedKind) -> None:
    async with daemon(tmp_path, kind) as host:
        await host.create(host.machine())
        kind.error = "busy"
        with pytest.raises(MachineError, match="busy"):
            await asyncio.to_thread(host.machine().remove)
        with pytest.raises(MachineError, match="is being removed"):
            await host.create(host.machine())
        kind.error = ""
        await asyncio.to_thread(host.machine().remove)
        await asyncio.to_thread(host.machine().remove)  # already removed: no error
        assert await asyncio.to_thread(host.client.machines) == []


async def test_an_impossible_machine_is_rejected_before_creation(tmp_path: Path, kind: ScriptedKind) -> None:
    async with daemon(tmp_path, kind) as host:
        with pytest.raises(PreCreateFailed, match=r"options\.size: no such size; choose another"):
            await asyncio.to_thread(host.machine().check, {"size": "impossible"})
        assert await asyncio.to_thread(host.client.machines) == []


async def test_creations_above_the_limit_wait_and_report_it(tmp_path: Path, kind: ScriptedKind) -> None:
    kind.resume.clear()
    async with daemon(tmp_path, kind, at_once=2) as host:
        output: list[str] = []
        creations = [asyncio.create_task(host.create(host.machine(f"m{n}"), output.append)) for n in range(6)]
        while len(output) < 6:
            await asyncio.sleep(0.01)
        kind.resume.set()
        await asyncio.gather(*creations)
    assert kind.most_concurrent == 2
    assert sum("Waiting for" in line for line in output) == 4


async def test_a_credential_grants_access_to_its_own_machine_only(tmp_path: Path, kind: ScriptedKind) -> None:
    async with daemon(tmp_path, kind) as host:
        await host.create(host.machine())
        key = (tmp_path / places.KEY).read_bytes()
        assert (tmp_path / places.KEY).stat().st_mode & 0o777 == 0o600
        mine = HostClient(places.socket_of(tmp_path), lambda *_: machine_credential(key, "fleet", "m1"), timeout=0)
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
async def test_invalid_requests_get_an_error(tmp_path: Path, kind: ScriptedKind, line: bytes, error: str) -> None:
    async with daemon(tmp_path, kind):
        answer = await asyncio.to_thread(response_to, tmp_path, line)
        assert error in answer["error"]["message"]


async def test_a_second_daemon_cannot_use_the_directory(tmp_path: Path, kind: ScriptedKind) -> None:
    async with daemon(tmp_path, kind):
        with pytest.raises(AlreadyRunning):
            await Daemon(tmp_path).run()


async def test_a_daemon_that_does_not_respond_is_named(tmp_path: Path) -> None:
    (tmp_path / places.KEY).write_bytes(b"k")
    with pytest.raises(Unreachable, match="does not answer at"):
        await asyncio.to_thread(HostClient.of(tmp_path, timeout=0).version)


async def test_socket_paths_can_be_long(tmp_path: Path, kind: ScriptedKind) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    async with daemon(deep, kind) as host:
        assert await asyncio.to_thread(host.client.machines) == []


def creation_line(state_dir: Path) -> bytes:
    credential = machine_credential((state_dir / places.KEY).read_bytes(), "fleet", "m1")
    request = {"verb": "create", "scope": "fleet", "name": "m1", "kind": "process", "token": "0123456789abcdef"}
    return json.dumps({**request, "authorized_key": "ssh-ed25519 AAAA", "credential": credential}).encode() + b"\n"


def response_to(state_dir: Path, line: bytes) -> dict[str, dict[str, str]]:
    with sockets.connected(places.socket_of(state_dir), 10) as stream:
        try:
            stream.sendall(line)
            stream.shutdown(1)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the daemon closed the connection early
        with stream.makefile("rb") as responses:
            response: dict[str, dict[str, str]] = json.loads(responses.readline())
            return response
