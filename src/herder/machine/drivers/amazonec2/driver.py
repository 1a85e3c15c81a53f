"""The amazonec2 driver class. The code that uses boto3 is imported on use: flags must be available without boto3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from herder.api.machines.drivers.flags import Flag, Value
from herder.machine.driver import Machine, Reach, State
from herder.machine.drivers.amazonec2 import options, settings
from herder.machine.errors import MachineError, PreCreateFailed

if TYPE_CHECKING:
    from herder.machine.drivers.amazonec2.server import Server


class AmazonEC2:
    name: ClassVar[str] = "amazonec2"
    flags: ClassVar[tuple[Flag, ...]] = options.FLAGS
    seeds: ClassVar[bool] = False

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._known: Server | None = None

    def configure(self, values: Mapping[str, Value]) -> None:
        settings.take(self.machine.config, values)
        self._known = None

    def update_credentials(self, values: Mapping[str, Value]) -> None:
        settings.renew_credentials(self.machine.config, values)
        self._known = None

    def check(self) -> None:
        try:
            self._server.check()
        except MachineError as error:
            raise PreCreateFailed(error.message, error.advice) from error

    def create(self) -> None:
        self._server.create()

    def address(self) -> str:
        return self._server.address()

    def state(self) -> State:
        return self._server.state()

    def reach(self) -> Reach:
        config = self.machine.config
        return Reach(self._server.address(), config.get("SSHPort") or 22, config.get("SSHUser") or "ubuntu")

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop(force=False)

    def restart(self) -> None:
        self._server.restart()

    def kill(self) -> None:
        self._server.stop(force=True)

    def remove(self) -> None:
        self._server.remove()

    @property
    def _server(self) -> Server:
        if self._known is None:
            try:
                from herder.machine.drivers.amazonec2.server import Server
            except ModuleNotFoundError as error:
                raise MachineError(
                    f"driver amazonec2 requires the Python package {(error.name or 'boto3').partition('.')[0]}",
                    "run: pip install 'herder[amazonec2]'",
                ) from error
            self._known = Server(self.machine)
        return self._known
