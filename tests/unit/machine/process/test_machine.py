"""`process` machines as seen from inside and by SSH."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from herder.machine.driver import State
from herder.machine.errors import MachineError
from herder.machine.host.kinds import Place
from herder.machine.ssh.keys import new_key_pair
from tests.unit.machine.host.hosts import Host
from tests.unit.machine.process.machine_ssh import connect, eventually, output_of, run, wait_bootstrapped

SCRIPT = """#!/bin/sh
echo "$HERDER_MACHINE" >> /etc/rancher/runs
mkdir -p /var/lib/rancher/agent
printf '#!/bin/sh\\necho "$$" >> /etc/rancher/boots; exec sleep 1000\\n' > /etc/herder/boot.d/10-agent
chmod +x /etc/herder/boot.d/10-agent
echo "the console sees this"
"""

WRITABLE = (
    *("/", "/dev/shm", "/etc", "/etc/kubernetes", "/etc/rancher", "/etc/systemd", "/home", "/opt", "/root", "/run"),
    *("/tmp", "/usr/local/bin", "/var", "/var/lib/kubelet", "/var/lib/rancher", "/var/log", "/var/tmp"),
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The daemon ignores SIGHUP, as under nohup; processes in machines must not inherit that."""
    with Host(tmp_path_factory.mktemp("host")) as host:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            host.start()
        finally:
            signal.signal(signal.SIGHUP, before)
        yield host


@pytest.fixture(scope="module")
def place(host: Host) -> Place:
    return host.create("m1", SCRIPT, zone="b")


@pytest.fixture(scope="module")
def other(host: Host) -> Place:
    return host.create("m2", SCRIPT)


async def test_a_machine_has_its_own_name_and_address(place: Place, other: Place) -> None:
    assert place.address != other.address
    assert place.address.startswith("127.")
    assert await output_of(place, "hostname; cat /etc/hostname; echo $HERDER_ADDRESS $HERDER_ZONE") == (
        f"m1\nm1\n{place.address} b"
    )
    assert await output_of(place, "getent hosts m1 | cut -d' ' -f1") == place.address


async def test_machines_have_separate_files_at_the_same_paths(host: Host, place: Place, other: Place) -> None:
    await wait_bootstrapped(place)
    await wait_bootstrapped(other)
    assert await output_of(place, "cat /etc/rancher/runs") == "m1"
    assert await output_of(other, "cat /etc/rancher/runs") == "m2"
    assert not Path("/etc/rancher/runs").exists()


async def test_machines_can_listen_on_the_same_port(place: Place, other: Place) -> None:
    program = "import os, socket; s = socket.create_server((os.environ['HERDER_ADDRESS'], 6443)); print('up'); input()"
    async with connect(place) as one, connect(other) as two:
        servers = [await each.create_process(f'exec python3 -uc "{program}"') for each in (one, two)]
        assert [await server.stdout.readline() for server in servers] == ["up\n", "up\n"]
        for each in (place, other):
            socket.create_connection((each.address, 6443)).close()
        for server in servers:
            server.stdin.write("enough\n")
            await server.wait()


async def test_the_usual_directories_are_writable(place: Place) -> None:
    writes = [f"touch {path}/probe && rm {path}/probe || exit 1" for path in WRITABLE]
    await output_of(place, "; ".join(writes))


async def test_the_rest_of_the_host_is_read_only(place: Place) -> None:
    writes = [f"touch {path}/probe && exit 1" for path in ("/usr/bin", "/usr/lib", "/sys", "/.host/etc")]
    await output_of(place, "; ".join([*writes, "true"]))


async def test_root_inside_cannot_open_private_files_of_the_host(place: Place) -> None:
    for command in ("mount -o remount,bind,rw /usr", "umount /usr/local", "umount -l /proc", "umount -l /sys"):
        assert (await run(place, command)).exit_status != 0, command
    await output_of(place, "mount -t tmpfs mine /mnt && umount /mnt")


async def test_secrets_and_processes_of_the_host_are_invisible(host: Host, place: Place) -> None:
    for secret in (host.state_dir / "key", Path.home(), Path("/proc") / str(host.pid)):
        listed = await run(place, f"ls -A {secret}")
        assert listed.exit_status != 0 or not listed.stdout, f"{secret}: {listed.stdout}"


async def test_root_inside_is_unprivileged_outside(host: Host, place: Place) -> None:
    assert await output_of(place, "id -u") == "0"
    assert host.machine_processes()
    for pid in host.machine_processes():
        assert os.stat(f"/proc/{pid}").st_uid != 0


async def test_init_is_small_and_reaps_orphans(place: Place) -> None:
    assert await output_of(place, "cat /proc/1/comm") == "sh"
    kilobytes = int(await output_of(place, "grep VmRSS /proc/1/status | tr -dc 0-9"))
    assert kilobytes < 3 * 1024
    await output_of(place, "sh -c 'sleep 0.01 & sleep 0.01 &'")

    async def clean() -> bool:
        return "Z" not in await output_of(place, "cat /proc/[0-9]*/stat | cut -d' ' -f3 || true")

    await eventually(clean)


async def test_the_bootstrap_script_runs_once_and_its_boot_scripts_at_every_boot(host: Host) -> None:
    machine = host.machine("boots")
    place = host.create("boots", SCRIPT)
    await wait_bootstrapped(place)
    assert await output_of(place, "cat /run/cluster-api/bootstrap-success.complete") == "success"
    assert "the console sees this" in (host.directory("boots") / "console.log").read_text()
    for boots in (1, 2, 3):

        async def booted(times: int = boots) -> bool:
            return (await output_of(place, "cat /etc/rancher/boots 2>/dev/null || true")).count("\n") + 1 == times

        await eventually(booted)
        machine.restart()
    assert await output_of(place, "cat /etc/rancher/runs") == "boots"


async def test_a_failed_script_is_reported_on_the_console(host: Host) -> None:
    place = host.create("fails", "#!/bin/sh\nexit 3\n")
    await wait_bootstrapped(place)
    assert "bootstrap script failed with status 3" in (host.directory("fails") / "console.log").read_text()
    assert (await run(place, "test -e /run/cluster-api/bootstrap-success.complete")).exit_status == 1


async def test_stopping_ends_all_its_processes_and_keeps_its_files(host: Host) -> None:
    before = set(host.machine_processes())
    place, machine = host.create("rests"), host.machine("rests")
    await output_of(place, "echo kept > /root/file; nohup sleep 1000 >/dev/null 2>&1 & sh -c 'trap \"\" TERM' ")
    machine.stop()
    assert machine.state() == State.STOPPED
    assert set(host.machine_processes()) == before
    with pytest.raises(ConnectionRefusedError):
        await output_of(place, "true")
    machine.start()
    assert await output_of(place, "cat /root/file") == "kept"
    machine.kill()
    assert set(host.machine_processes()) == before


async def test_a_machine_can_be_shut_down_from_inside(host: Host) -> None:
    place = host.create("leaves")
    await run(place, "kill 1")

    async def stopped() -> bool:
        return not host.runs("leaves")

    await eventually(stopped)
    assert (await run(place, "true")).exit_status == 255


async def test_limits_apply_to_boot_and_ssh_sessions(host: Host) -> None:
    place = host.create("small", "#!/bin/sh\nulimit -d > /root/limit\n", memory=64)
    await wait_bootstrapped(place)
    assert await output_of(place, "cat /root/limit; ulimit -d") == "65536\n65536"


async def test_cloud_config_is_rejected_with_advice(host: Host) -> None:
    with pytest.raises(MachineError, match="only scripts that start with #!; use driver local"):
        host.create("cloudy", "#cloud-config\n")
    host.machine("cloudy").remove()


async def test_ssh_sessions_carry_bytes_and_the_exit_status(place: Place) -> None:
    blob = os.urandom(1_000_000)
    done = await run(place, "cat; echo oops >&2; exit 7", input=blob)
    assert (done.stdout, done.stderr, done.exit_status) == (blob, b"oops\n", 7)
    killed = await run(place, "kill -9 $$")
    assert killed.exit_signal[0] == "KILL"


async def test_ssh_sessions_can_have_a_terminal(place: Place) -> None:
    done = await run(place, "tty; stty size", term_type="xterm", term_size=(100, 40))
    lines = done.stdout.decode().split()
    assert lines[0].startswith("/dev/pts/")
    assert lines[1:] == ["40", "100"]


async def test_a_shell_reads_terminal_input(place: Place) -> None:
    async with connect(place) as connection:
        shell = await connection.create_process(term_type="vt100")
        shell.stdin.write("echo $((6 * 7)); exit 5\n")
        done = await shell.wait()
    assert "42" in done.stdout
    assert done.exit_status == 5


async def test_a_terminal_is_hung_up_when_its_client_disconnects(place: Place) -> None:
    async with connect(place) as connection:
        await connection.create_process("echo begun; exec sleep 4321", term_type="vt100")
        await eventually(lambda: sleeps(place))
        connection.abort()

    async def hung_up() -> bool:
        return not await sleeps(place)

    await eventually(hung_up)


async def sleeps(place: Place) -> bool:
    return "sleep\x004321" in await output_of(place, "cat /proc/[0-9]*/cmdline || true")


async def test_only_the_owners_key_is_accepted(place: Place) -> None:
    with pytest.raises(asyncssh.PermissionDenied):
        async with connect(place, new_key_pair()[0].decode()):
            pass
