"""The process that holds the machines' network namespaces, outlives the daemon, and forwards connections.

`python -m herder.machine.host.local.holder DIRECTORY`, in its own session, prints a line when it is ready. A child
inside the namespaces passes sockets created there; everything else happens outside, so no forwarding rules are needed.

- As root, a veth pair connects the network to the host: machines have addresses, and the host is their gateway.
- Rootless, each machine has a loopback address on which its SSH is forwarded. SIGHUP reloads the addresses.
- Configured ports of the gateway are forwarded to the same ports of the host's loopback, for the manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from herder.engine.runner.shim import kernel
from herder.machine.host.local import links, locks, rootless
from herder.machine.host.local.network import FORWARD_PORT, forward_address

CONFIG, LOCK, READY = "fabric.json", "fabric.lock", "ready"
_SSH = 22
_CHUNK = 1 << 16

log = logging.getLogger(__name__)


def main() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    directory = Path(sys.argv[1])
    config = json.loads((directory / CONFIG).read_text())
    lock = locks.hold(directory / LOCK)
    os.truncate(lock, 0)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _inside(config, theirs)
    theirs.close()
    said = ours.recv(4096)
    if said != READY.encode():
        sys.exit(said.decode() or "the network's namespace could not be made")
    if not config["rootless"]:
        _join_host(config)
    os.write(lock, f"{child}\n".encode())
    print(READY, flush=True)
    asyncio.run(Holder(directory, config, ours).run())


def _inside(config: dict[str, Any], theirs: socket.socket) -> NoReturn:
    try:
        outside = os.getppid()
        _make_network(config, outside)
        kernel.die_with_parent(signal.SIGKILL)
        theirs.send(READY.encode())
        while theirs.recv(1):
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
                socket.send_fds(theirs, [b"s"], [made.fileno()])
    except Exception as error:  # report any error to the parent
        theirs.send(str(error).encode()[:4096])
    finally:
        os._exit(1)


def _make_network(config: dict[str, Any], outside: int) -> None:
    commands = ["link set lo up", "link add br0 type bridge", "link set br0 up"]
    if config["rootless"]:
        if config["beside"]:  # running machines can only be reached in their user namespace
            rootless.join(config["beside"])
        else:
            rootless.enter()
        kernel.unshare(kernel.CLONE_NEWNET)
        commands.append(f"address add {config['gateway']}/{config['prefix']} dev br0")
        # the holder listens on the gateway's ports
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    else:
        with contextlib.suppress(links.LinkError):  # left over from a killed holder
            links.apply([f"link delete dev {config['link']}"])
        kernel.unshare(kernel.CLONE_NEWNET)
        commands.append(f"link add host type veth peer name {config['link']} netns {outside}")
        commands.append("link set host master br0 up")
    links.apply(commands)


def _join_host(config: dict[str, Any]) -> None:
    link = config["link"]
    links.apply([f"address add {config['gateway']}/{config['prefix']} dev {link}", f"link set {link} up"])


class Holder:
    def __init__(self, directory: Path, config: dict[str, Any], factory: socket.socket) -> None:
        self.addresses = directory / "addresses"
        self.network = ipaddress.IPv4Network(config["network"])
        self.config = config
        self._factory = factory
        self._forwards: dict[str, asyncio.Server] = {}

    async def run(self) -> None:
        """Run as long as the child inside lives."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_signal_handler(signal.SIGCHLD, ended.set)
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        for port in self.config["ports"]:
            await self._open_gateway(port)
        if self.config["rootless"]:
            changed = asyncio.Event()
            loop.add_signal_handler(signal.SIGHUP, changed.set)
            tending = asyncio.create_task(self._reconcile_forwards(changed))
            await ended.wait()
            tending.cancel()
        else:
            await ended.wait()

    async def _open_gateway(self, port: int) -> None:
        listener = self._socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.config["gateway"], port))
            await asyncio.start_server(lambda r, w: self._pass_on(r, w, None, ("127.0.0.1", port)), sock=listener)
        except OSError as error:
            listener.close()
            log.warning("port %s of the machines' gateway is not passed on: %s", port, error)

    async def _reconcile_forwards(self, changed: asyncio.Event) -> None:
        while True:
            wanted = set(os.listdir(self.addresses))
            for address in self._forwards.keys() - wanted:
                self._forwards.pop(address).close()
            for address in wanted - self._forwards.keys():
                await self._open_forward(address)
            await changed.wait()
            changed.clear()

    async def _open_forward(self, address: str) -> None:
        def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
            return self._pass_on(reader, writer, self._socket(), (address, _SSH))

        try:
            self._forwards[address] = await asyncio.start_server(
                passed, forward_address(address, self.network), FORWARD_PORT
            )
        except OSError as error:
            log.warning("cannot forward SSH to %s: %s", address, error)

    def _socket(self) -> socket.socket:
        """Return a socket of the machines' network."""
        if not self.config["rootless"]:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._factory.send(b"s")
        _, (descriptor,), _, _ = socket.recv_fds(self._factory, 1, 1)
        return socket.socket(fileno=descriptor)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        outgoing: socket.socket | None,
        target: tuple[str, int],
    ) -> None:
        outgoing = outgoing or socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            outgoing.setblocking(False)
            await asyncio.get_running_loop().sock_connect(outgoing, target)
            far_reader, far_writer = await asyncio.open_connection(sock=outgoing)
        except OSError:
            outgoing.close()
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        for side in (writer, far_writer):
            side.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


if __name__ == "__main__":
    main()
