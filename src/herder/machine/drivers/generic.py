"""The generic driver: an existing host that is reached by SSH; only its record is created and removed."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from herder.api.machines.drivers.flags import Flag, FlagType, Value
from herder.machine.driver import Machine, Reach, State
from herder.machine.errors import MachineError, PreCreateFailed
from herder.machine.state.saved_machine import reach_of

CONNECT_SECONDS = 15.0


class Generic:
    name: ClassVar[str] = "generic"
    seeds: ClassVar[bool] = False
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag("generic-engine-port", "Docker engine port", FlagType.INT, 2376, "GENERIC_ENGINE_PORT"),
        Flag("generic-ip-address", "IP Address of machine", env="GENERIC_IP_ADDRESS"),
        Flag("generic-ssh-user", "SSH user", default="root", env="GENERIC_SSH_USER"),
        Flag("generic-ssh-key", "SSH private key path (default: a key in ~/.ssh)", env="GENERIC_SSH_KEY"),
        Flag("generic-ssh-port", "SSH port", FlagType.INT, 22, "GENERIC_SSH_PORT"),
    )

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def configure(self, values: Mapping[str, Value]) -> None:
        if not values["generic-ip-address"]:
            raise MachineError("generic driver requires the --generic-ip-address option")
        port = values["generic-ssh-port"]
        if not isinstance(port, int) or not 0 < port < 65536:
            raise MachineError(f"--generic-ssh-port: {port} is not a port number", "use 1 to 65535")
        self._machine.config |= {
            "EnginePort": values["generic-engine-port"],
            "IPAddress": values["generic-ip-address"],
            "SSHUser": values["generic-ssh-user"],
            "SSHPort": port,
            "SSHKey": values["generic-ssh-key"],
        }

    def update_credentials(self, values: Mapping[str, Value]) -> None:
        """The key was copied into the record, so nothing expires."""

    def check(self) -> None:
        self._import_key()
        from herder.machine.ssh.provisioning import check_access

        check_access(self.reach(), self._machine)

    def create(self) -> None:
        """The host exists already."""

    def address(self) -> str:
        return self.reach().host

    def state(self) -> State:
        """Whether its SSH port accepts connections, which is all that is known."""
        reach = self.reach()
        try:
            with socket.create_connection((reach.host, reach.port), CONNECT_SECONDS):
                return State.RUNNING
        except OSError:
            return State.STOPPED

    def reach(self) -> Reach:
        return reach_of(self._machine.config)

    def start(self) -> None:
        raise MachineError("generic driver does not support start", "start the host yourself")

    def stop(self) -> None:
        raise MachineError("generic driver does not support stop", "stop the host yourself")

    def kill(self) -> None:
        raise MachineError("generic driver does not support kill", "stop the host yourself")

    def restart(self) -> None:
        from herder.machine.ssh.provisioning import reboot

        reboot(self.reach(), self._machine)

    def remove(self) -> None:
        """The host is left as it is."""

    def _import_key(self) -> None:
        """Copy the key into the record, so that it does not depend on the key's file."""
        said = str(self._machine.config["SSHKey"])
        path = Path(said).expanduser() if said else _default_key()
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            raise PreCreateFailed(
                f'SSH key does not exist: "{path}"', "pass another one with --generic-ssh-key"
            ) from None
        except OSError as error:
            raise PreCreateFailed(f"--generic-ssh-key: {path}: {error.strerror}") from error
        name = path.name if said else "id_rsa"
        self._machine.files[name] = key
        public = path.with_name(path.name + ".pub")
        if public.exists():
            self._machine.files[f"{name}.pub"] = public.read_bytes()
        self._machine.config["SSHKeyPath"] = f"{self._machine.directory}/{name}"


def _default_key() -> Path:
    """Return the first key that ssh would try."""
    directory = Path("~/.ssh").expanduser()
    found = [directory / name for name in ("id_ed25519", "id_ecdsa", "id_rsa") if (directory / name).exists()]
    if not found:
        raise PreCreateFailed("no SSH key found in ~/.ssh", "pass one with --generic-ssh-key")
    return found[0]
