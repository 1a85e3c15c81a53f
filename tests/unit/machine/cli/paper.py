"""A fake provider whose servers are files, and its driver `paper`. Tests list a directory to see what exists.

python -m tests.unit.machine.cli.paper COMMAND…     run herder-machine with this driver
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from herder.api.machines.drivers.flags import Flag, Value
from herder.machine.cli.main import main
from herder.machine.driver import Machine, Reach, State
from herder.machine.drivers import NATIVE
from herder.machine.errors import MachineError, PreCreateFailed, ServerGone

PLACE = "PAPER_PLACE"
ADDRESS = "192.0.2.9"
PAPER = "tests.unit.machine.cli.paper:Paper"


class Provider:
    """Stores each server as a file: the name is its token, the content its state."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "servers").mkdir(exist_ok=True)

    def servers(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in (self.place / "servers").iterdir()}

    def server(self, token: str) -> Path:
        return self.place / "servers" / token

    def step(self, name: str) -> None:
        """Block at a step if the test created a named pipe for it.

        The driver waits until the test opens that pipe, and then until the test opens the resume pipe.
        """
        gate = self.place / name
        if gate.exists():
            with gate.open("wb"):
                self.resume_pipe(name).read_bytes()

    def resume_pipe(self, name: str) -> Path:
        return self.place / f"{name}-goes-on"


class Paper:
    name: ClassVar[str] = "paper"
    seeds: ClassVar[bool] = False
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag("paper-size", "A size", env="PAPER_SIZE"),
        Flag("paper-password", "A password", env="PAPER_PASSWORD"),
        Flag("paper-userdata", "A file with user data"),
    )

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.provider = Provider(Path(os.environ[PLACE]))

    def configure(self, values: Mapping[str, Value]) -> None:
        self.machine.config["Size"] = values["paper-size"]
        self.update_credentials(values)

    def update_credentials(self, values: Mapping[str, Value]) -> None:
        if "paper-password" in values:
            self.machine.config["Password"] = values["paper-password"]

    def check(self) -> None:
        if self.machine.config["Size"] == "huge":
            raise PreCreateFailed('no "huge" here', "ask for less")

    def create(self) -> None:
        config = self.machine.config
        if "Token" not in config:
            config["Token"] = secrets.token_hex(4)
            self.machine.save()
        self.provider.step("token-saved")
        self.provider.server(config["Token"]).write_text("Running")
        (self.provider.place / "user-data").write_bytes(self.machine.user_data)
        self.provider.step("server-made")
        if config["Size"] == "broken":
            raise MachineError("it broke", "get another")
        config["IPAddress"] = ADDRESS
        self.machine.say("it is there")

    def address(self) -> str:
        return str(self.machine.config["IPAddress"])

    def state(self) -> State:
        server = self.provider.server(self.machine.config["Token"])
        if not server.exists():
            raise ServerGone("no such server")
        return State(server.read_text())

    def reach(self) -> Reach:
        return Reach(self.address())

    def start(self) -> None:
        self.provider.server(self.machine.config["Token"]).write_text("Running")

    def stop(self) -> None:
        self.provider.server(self.machine.config["Token"]).write_text("Stopped")

    kill = stop

    def restart(self) -> None:
        self.start()

    def remove(self) -> None:
        if self.machine.config["Password"] == "old":
            raise MachineError("the password has expired", "give a new one with --update-config")
        self.provider.step("removing")
        if token := self.machine.config.get("Token"):
            self.provider.server(token).unlink(missing_ok=True)
        self.provider.step("server-removed")


if __name__ == "__main__":
    NATIVE["paper"] = PAPER
    sys.exit(main())
