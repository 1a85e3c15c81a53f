"""Base of the drivers for machines of this host, which the host daemon creates.

The token is saved before the daemon is called, so repeated calls refer to the same machine.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, ClassVar

from herder.api.machines.drivers.flags import Flag, Value
from herder.machine.driver import Machine, Reach, State
from herder.machine.errors import MachineError
from herder.machine.host.client import HostClient, HostedMachine
from herder.machine.host.kinds import Ask, Place
from herder.machine.ssh.keys import new_key_pair


class Hosted:
    """Driver of the machine kind with the same name; subclasses provide `options`."""

    name: ClassVar[str]
    flags: ClassVar[tuple[Flag, ...]]
    seeds: ClassVar[bool] = True

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._client: HostClient | None = None

    def options(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Validate the flags and return the options for the daemon; stored as `Options` in the record."""
        raise NotImplementedError

    def configure(self, values: Mapping[str, Value]) -> None:
        options = self.options(values)
        self.machine.config |= {"Options": options, "Zone": options.get("zone", "")}

    def update_credentials(self, values: Mapping[str, Value]) -> None:
        """There are no credentials: each Job brings its own."""

    def check(self) -> None:
        self._hosted().check(self._options())

    def create(self) -> None:
        config, files = self.machine.config, self.machine.files
        if not config.get("Token"):
            files["id_rsa"], files["id_rsa.pub"] = new_key_pair()
            config |= {
                "Token": secrets.token_hex(16),
                "Scope": self.machine.scope,
                "SSHUser": "root",
                "SSHKeyPath": f"{self.machine.directory}/id_rsa",
            }
            self.machine.save()
        ask = Ask(
            hostname=self.machine.hostname or self.machine.name,
            authorized_key=files["id_rsa.pub"].decode().strip(),
            script=self.machine.script,
            user_data=self.machine.user_data,
        )
        self._remember(self._hosted().create(self._options(), ask, self.machine.say))
        self.machine.save()

    def address(self) -> str:
        return str(self.machine.config.get("IPAddress") or "")

    def state(self) -> State:
        if not self.machine.config.get("Token"):
            return State.NOT_FOUND
        return self._hosted().state()

    def reach(self) -> Reach:
        config = self.machine.config
        if not config.get("IPAddress"):
            raise MachineError(
                f'machine "{self.machine.name}" has no address yet',
                "wait until its creation is complete, or create it again",
            )
        key = config.get("HostKey")
        return Reach(config["IPAddress"], config["SSHPort"], config["SSHUser"], (key,) if key else ())

    def start(self) -> None:
        hosted = self._hosted()
        hosted.start(self.machine.say)
        self._remember(hosted.place())

    def stop(self) -> None:
        self._hosted().stop()

    def restart(self) -> None:
        hosted = self._hosted()
        hosted.restart(self.machine.say)
        self._remember(hosted.place())

    def kill(self) -> None:
        self._hosted().kill()

    def remove(self) -> None:
        if self.machine.config.get("Token"):  # without a token, the daemon was never asked to create anything
            self._hosted().remove()

    def _options(self) -> dict[str, Any]:
        return dict(self.machine.config.get("Options") or {})

    def _remember(self, place: Place) -> None:
        self.machine.config |= {
            "IPAddress": place.address,
            "SSHPort": place.ssh_port,
            "SSHUser": place.ssh_user,
            "HostKey": place.host_key,
        }

    def _hosted(self) -> HostedMachine:
        if self._client is None:
            self._client = HostClient.from_environment()
        token = str(self.machine.config.get("Token") or "")
        # The owner stays the same if the record moves, for example when its namespace was deleted.
        scope = str(self.machine.config.get("Scope", self.machine.scope))
        return self._client.machine(self.name, scope, self.machine.name, token)
