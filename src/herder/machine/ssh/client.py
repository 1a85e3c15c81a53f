"""Synchronous SSH connection: commands with line-by-line output, and small files.

Only this module and `session` import asyncssh, which takes longer than most commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import asyncssh

from herder.machine.driver import Reach
from herder.machine.errors import MachineError, Unreachable
from herder.machine.ssh.hosts import HostKeys

CONNECT_SECONDS = 20.0
COMMAND_SECONDS = 300.0
KEPT_BYTES = 64 << 10  # of a command's output: the end is the informative part

Say = Callable[[str], None]


class LoginRefused(MachineError):
    """The host responds, but rejects the login."""


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    output: str  # end of stdout and stderr


class Shell:
    """An open connection."""

    def __init__(self, runner: asyncio.Runner, connection: asyncssh.SSHClientConnection) -> None:
        self._runner = runner
        self._connection = connection

    def run(
        self, command: str, *, stdin: bytes = b"", say: Say | None = None, timeout: float | None = COMMAND_SECONDS
    ) -> Outcome:
        """Run a trusted command; pass untrusted input by `stdin` or `shlex.quote`."""
        return self._runner.run(self._run(command, stdin, say, timeout))

    def put(self, content: bytes, path: str) -> None:
        """Write a private file, without following a link or overwriting another user's file."""
        place = shlex.quote(path)
        outcome = self.run(f"umask 077; rm -f {place} && set -C && cat >{place}", stdin=content)
        if outcome.status:
            raise MachineError(f"cannot write {path} on the machine: {outcome.output.strip()}")

    async def _run(self, command: str, stdin: bytes, say: Say | None, timeout: float | None) -> Outcome:
        try:
            async with asyncio.timeout(timeout):
                process = await self._connection.create_process(
                    command, encoding=None, stderr=asyncssh.STDOUT, stdin=asyncssh.PIPE
                )
                with contextlib.suppress(OSError):  # a command may end without reading its input
                    process.stdin.write(stdin)
                    process.stdin.write_eof()
                output = b""
                async for line in process.stdout:
                    output = (output + line)[-KEPT_BYTES:]
                    if say is not None and line:
                        say(line.decode(errors="replace").rstrip())
                done = await process.wait()
        except TimeoutError:
            raise MachineError(f"a command on the machine timed out after {timeout:.0f} s: {command}") from None
        except (asyncssh.Error, OSError) as error:
            raise Unreachable(
                f"lost the connection to the machine: {error}", "check that it is running and try again"
            ) from error
        return Outcome(done.returncode if done.returncode is not None else 255, output.decode(errors="replace"))


@contextlib.contextmanager
def connected(reach: Reach, key: bytes, hosts: HostKeys, *, timeout: float = CONNECT_SECONDS) -> Iterator[Shell]:
    with asyncio.Runner() as runner:
        connection = runner.run(connect(reach, key, hosts, timeout=timeout))
        try:
            yield Shell(runner, connection)
        finally:
            connection.close()
            runner.run(connection.wait_closed())


async def connect(
    reach: Reach, key: bytes, hosts: HostKeys, *, timeout: float = CONNECT_SECONDS
) -> asyncssh.SSHClientConnection:
    if not reach.host:
        raise Unreachable("the machine has no IP address", "check that it is running")

    class Client(asyncssh.SSHClient):
        def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
            return hosts.accepts(key.export_public_key("openssh").decode().strip())

    connection = await _opened(reach, _imported(key), hosts, Client, timeout)
    hosts.keep_first_seen()
    return connection


async def _opened(
    reach: Reach, key: asyncssh.SSHKey, hosts: HostKeys, client: type[asyncssh.SSHClient], timeout: float
) -> asyncssh.SSHClientConnection:
    where = f"{reach.host} port {reach.port}"
    try:
        async with asyncio.timeout(timeout):
            return await asyncssh.connect(
                reach.host,
                reach.port,
                username=reach.user,
                client_keys=[key],
                client_factory=client,
                known_hosts=([], [], []),  # the client above verifies host keys
                server_host_key_algs=hosts.algorithms() or (),
                preferred_auth=("publickey",),
                agent_path=None,
                config=None,
                keepalive_interval=15,
            )
    except asyncssh.PermissionDenied as error:
        raise LoginRefused(
            f'{where} rejects the SSH key of user "{reach.user}"',
            "check that the user exists and that ~/.ssh/authorized_keys contains the public key",
        ) from error
    except asyncssh.HostKeyNotVerifiable as error:
        raise hosts.refused or Unreachable(f"{where}: {error}") from error
    except asyncssh.KeyExchangeFailed as error:
        raise Unreachable(f"{where}: {error}", "the host key type has changed, or there is no common cipher") from error
    except TimeoutError:
        raise Unreachable(
            f"{where} did not answer within {timeout:.0f} s",
            "check the address, the host and its firewall",
        ) from None
    except ConnectionRefusedError as error:
        raise Unreachable(
            f"{where} refuses connections", "check that the SSH server is running and that the port is correct"
        ) from error
    except (asyncssh.Error, OSError, ValueError) as error:  # ValueError: no host, user or algorithm of SSH
        reason = getattr(error, "strerror", None) or str(error)
        raise Unreachable(f"cannot reach {where} by SSH: {reason}", "check the address") from error


def _imported(key: bytes) -> asyncssh.SSHKey:
    if not key:
        raise MachineError(
            "the machine state contains no SSH key", "the machine was created without one or by another program"
        )
    try:
        return asyncssh.import_private_key(key)
    except asyncssh.KeyImportError as error:
        if "assphrase" in str(error):
            raise MachineError("the SSH key has a passphrase", "use a key without a passphrase") from None
        raise MachineError("cannot parse the SSH key", "use a private key in OpenSSH or PEM format") from None


@contextlib.asynccontextmanager
async def connection_to(reach: Reach, key: bytes, hosts: HostKeys) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """For callers with their own event loop."""
    connection = await connect(reach, key, hosts)
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()
