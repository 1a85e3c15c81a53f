"""Client of the host daemon: Jobs use a credential for their machine, the owner uses the key."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from herder.api.machines.hosts import CREDENTIAL_VARIABLE, SOCKET_VARIABLE, machine_credential
from herder.machine.driver import State
from herder.machine.errors import MachineError, Unreachable
from herder.machine.host import places, protocol, sockets
from herder.machine.host.autostart import ensure_running
from herder.machine.host.kinds import Ask, Place

CONNECT_SECONDS = 10.0
TIMEOUT_SECONDS = 60.0  # for a daemon that is being replaced


def _ignore_progress(_line: str) -> None:
    pass


class HostClient:
    """`credential` returns the credential for a machine, by scope and name."""

    def __init__(self, socket: Path, credential: Callable[[str, str], str], timeout: float = TIMEOUT_SECONDS) -> None:
        self._socket = socket
        self._credential = credential
        self._timeout = timeout

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> HostClient:
        """Use the socket and credential of a Job; else the daemon in this user's data directory, started if
        necessary.
        """
        if not environment.get(SOCKET_VARIABLE):
            state_dir = places.state_directory()
            ensure_running(state_dir)
            return cls.of(state_dir)
        given = environment.get(CREDENTIAL_VARIABLE, "")
        if not given:
            raise MachineError(f"{SOCKET_VARIABLE} is set, but not {CREDENTIAL_VARIABLE}", "set both or neither")
        return cls(Path(environment[SOCKET_VARIABLE]), lambda _scope, _name: given)

    @classmethod
    def of(cls, state_dir: Path, timeout: float = TIMEOUT_SECONDS) -> HostClient:
        """Client for the owner of the key."""

        def credential(scope: str, name: str) -> str:
            try:
                return machine_credential((state_dir / places.KEY).read_bytes(), scope, name)
            except OSError as error:
                raise Unreachable(
                    f"cannot read the key of the host daemon: {state_dir / places.KEY}: {error.strerror}",
                    "run this command as the user who started the daemon",
                ) from None

        return cls(places.socket_of(state_dir), credential, timeout)

    def machine(self, kind: str, scope: str, name: str, token: str) -> HostedMachine:
        return HostedMachine(self, kind, scope, name, token)

    def machines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("list", protocol.OWNER)["machines"]
        return found

    def purge(self) -> None:
        """Remove every machine of this host."""
        self.ask("purge", protocol.OWNER)

    def version(self) -> dict[str, Any]:
        return self.ask("version", protocol.OWNER)

    def shutdown(self) -> None:
        self.ask("shutdown", protocol.OWNER)

    def ask(
        self,
        verb: str,
        subject: tuple[str, str],
        say: Callable[[str], None] = _ignore_progress,
        **others: Any,
    ) -> dict[str, Any]:
        """Send a request, and repeat it if the daemon is restarted: all verbs are idempotent."""
        deadline = time.monotonic() + self._timeout
        line = protocol.asking(verb, subject, self._credential(*subject), **others)
        while True:
            try:
                return self._ask(line, say)
            except (OSError, Unreachable) as error:
                if time.monotonic() > deadline:
                    raise Unreachable(
                        f"the host daemon does not answer at {self._socket}: {error}",
                        "check that 'herder up' is running",
                    ) from None
            time.sleep(0.2)

    def _ask(self, line: bytes, say: Callable[[str], None]) -> dict[str, Any]:
        with sockets.connected(self._socket, CONNECT_SECONDS) as stream:
            stream.sendall(line)
            stream.settimeout(None)  # creation takes its time; a daemon that dies closes the connection
            with stream.makefile("rb") as answers:
                for answer in answers:
                    decoded = json.loads(answer) if answer.endswith(b"\n") else {}
                    if "say" in decoded:
                        say(decoded["say"])
                    elif "done" in decoded:
                        done: dict[str, Any] = decoded["done"]
                        return done
                    elif "error" in decoded:
                        raise protocol.error_of(decoded["error"])
        raise Unreachable("the connection closed in the middle of a response")


class HostedMachine:
    """A machine of the daemon."""

    def __init__(self, client: HostClient, kind: str, scope: str, name: str, token: str) -> None:
        self._client = client
        self._kind = kind
        self._subject = (scope, name)
        self._token = token

    def check(self, options: Mapping[str, Any]) -> None:
        self._ask("check", options=dict(options))

    def create(self, options: Mapping[str, Any], ask: Ask, say: Callable[[str], None]) -> Place:
        return protocol.place_of(self._ask("create", say, options=dict(options), ask=ask))

    def place(self) -> Place:
        return protocol.place_of(self._ask("place"))

    def state(self) -> State:
        return State(self._ask("state")["state"])

    def start(self, say: Callable[[str], None] = _ignore_progress) -> None:
        self._ask("start", say)

    def stop(self) -> None:
        self._ask("stop")

    def restart(self, say: Callable[[str], None] = _ignore_progress) -> None:
        self._ask("restart", say)

    def kill(self) -> None:
        self._ask("kill")

    def remove(self) -> None:
        self._ask("remove")

    def _ask(self, verb: str, say: Callable[[str], None] = _ignore_progress, **others: Any) -> dict[str, Any]:
        return self._client.ask(verb, self._subject, say, kind=self._kind, token=self._token, **others)
