"""The relay in front of a driver plugin: only the process that started it reaches the plugin."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from herder.machine import plugin_relay

_PLUGIN = """#!{python}
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
if "{visitor}":  # a process of the host that was faster
    visitor = socket.create_connection(listener.getsockname())
    listener.accept()
print("127.0.0.1:%d" % listener.getsockname()[1], flush=True)
open(sys.argv[-1], "w").write(str(listener.getsockname()[1]))
peer, _ = listener.accept()
print("accepted", flush=True)
while data := peer.recv(4096):
    peer.sendall(data.upper())
"""


class Relay:
    """The relay, started as rancher-machine starts a plugin."""

    def __init__(self, directory: Path, *, visitor: str = "", driver: str = "") -> None:
        programs, plugins = directory / "programs", directory / "plugins"
        programs.mkdir()
        plugins.mkdir()
        own = plugin_relay.write_programs(programs, "example")
        plugin = plugins / (driver or "rancher-machine")
        plugin.write_text(_PLUGIN.format(python=sys.executable, visitor=visitor))
        plugin.chmod(0o700)
        variables = {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PATH": f"{programs}:{plugins}",
            plugin_relay.PROGRAM_VARIABLE: str(plugin),
        }
        self._port_file = directory / "port"
        command = [programs / driver if driver else own, "create", self._port_file]
        self.process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def address(self) -> tuple[str, int]:
        host, _, port = self.line().rpartition(":")
        return host, int(port)

    @property
    def plugin_port(self) -> int:
        return int(self._port_file.read_text())

    def end(self) -> bytes:
        self.process.kill()
        return self.process.communicate()[1]


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    relay = Relay(tmp_path)
    yield relay
    relay.end()


def test_the_parent_speaks_with_the_plugin_and_nobody_else_can(relay: Relay) -> None:
    address = relay.address()
    with socket.create_connection(address) as parent:
        parent.sendall(b"wool")
        assert parent.recv(64) == b"WOOL"
        for port in (relay.plugin_port, address[1]):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
        assert relay.line() == "accepted", "further output is passed on"
    relay.process.wait(10)


def test_a_connection_of_another_process_is_closed(relay: Relay) -> None:
    host, port = relay.address()
    program = f"import socket; s = socket.create_connection(('{host}', {port})); s.sendall(b'x'); print(s.recv(9))"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert "X" not in other.stdout
    with socket.create_connection((host, port)) as parent:
        parent.sendall(b"wool")
        assert parent.recv(64) == b"WOOL"


def test_a_plugin_that_others_are_connected_to_is_not_used(tmp_path: Path) -> None:
    relay = Relay(tmp_path, visitor="yes")
    assert relay.line() == ""
    assert b"another process connected to it" in relay.end()


def test_a_driver_of_its_own_is_found_further_along_the_path(tmp_path: Path) -> None:
    relay = Relay(tmp_path, driver="docker-machine-driver-example")
    with socket.create_connection(relay.address()) as parent:
        parent.sendall(b"wool")
        assert parent.recv(64) == b"WOOL"
    relay.end()
