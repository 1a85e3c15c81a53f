"""Context of every command: global flags, the state store, and output."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from herder.api.machines.drivers.flags import Flag, FlagType
from herder.api.machines.names import DRIVER_VARIABLE
from herder.machine.cli.flags import Parsed
from herder.machine.driver import Driver, Machine
from herder.machine.drivers import NATIVE, driver_class
from herder.machine.errors import MachineError
from herder.machine.progress import Screen
from herder.machine.state import record as records
from herder.machine.state.record import Phase, Record
from herder.machine.state.store import IMAGE_PATH, DirectoryStore, Store

IGNORED = "Ignored; accepted for compatibility with rancher-machine"
GLOBAL_FLAGS = (
    Flag("debug", "Print a traceback when a command fails", FlagType.BOOL, False, "MACHINE_DEBUG"),
    Flag("storage-path", "Configures storage path", env="MACHINE_STORAGE_PATH"),
    Flag("secret-name", "Name of the Secret that stores the machine state", env="K8S_SECRET_NAME"),
    Flag(
        "secret-namespace",
        "Namespace of the Secret that stores the machine state",
        default="default",
        env="K8S_SECRET_NAMESPACE",
    ),
    Flag("kubeconfig", "Kubeconfig for the Secret (default: the service account of the pod)", env="KUBECONFIG"),
    # Accepted for compatibility with rancher-machine; they concern Docker, GitHub and crash reports.
    Flag("tls-ca-cert", IGNORED, env="MACHINE_TLS_CA_CERT"),
    Flag("tls-ca-key", IGNORED, env="MACHINE_TLS_CA_KEY"),
    Flag("tls-client-cert", IGNORED, env="MACHINE_TLS_CLIENT_CERT"),
    Flag("tls-client-key", IGNORED, env="MACHINE_TLS_CLIENT_KEY"),
    Flag("github-api-token", IGNORED, env="MACHINE_GITHUB_API_TOKEN"),
    Flag("native-ssh", "Ignored; SSH is always native", FlagType.BOOL, False, "MACHINE_NATIVE_SSH"),
    Flag("bugsnag-api-token", IGNORED, env="MACHINE_BUGSNAG_API_TOKEN"),
)
GLOBAL_SHORTS = {"D": "debug", "s": "storage-path"}


say = Screen().show


def print_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class OfOtherProgram(Exception):
    """The command concerns a driver that is not native: rancher-machine gets the whole command line."""


@dataclass
class Context:
    options: Parsed
    environment: Mapping[str, str]

    @property
    def store_path(self) -> str:
        """Default for a state Secret: the paths in rancher-machine's image."""
        home = self.environment.get("HOME") or "/"
        default = IMAGE_PATH if self.options.text("secret-name") else f"{home}/.docker/machine"
        return str(Path(self.options.text("storage-path") or default).absolute())

    @cached_property
    def store(self) -> Store:
        if name := self.options.text("secret-name"):
            from herder.machine.state.kubernetes import SecretClient, connection_for
            from herder.machine.state.secret import SecretStore

            connection = connection_for(self.options.text("kubeconfig"))
            return SecretStore(SecretClient(connection, self.options.text("secret-namespace"), name), self.store_path)
        return DirectoryStore(Path(self.store_path))

    @property
    def scope(self) -> str:
        return self.options.text("secret-namespace") if self.options.text("secret-name") else ""

    def find(self, name: str) -> Record | None:
        files = self.store.load(name)
        if files is None:
            return None
        found = records.read(name, files)
        if driver := self.environment.get(DRIVER_VARIABLE):
            records.check_driver(found, driver)
        return found

    def record(self, name: str) -> Record:
        found = self.find(name)
        if found is None:
            raise MachineError(
                f'Docker machine "{name}" does not exist. '
                'Use "herder-machine ls" to list machines. Use "herder-machine create" to add a new one.'
            )
        return found


class OpenMachine:
    """A machine record with its driver."""

    def __init__(self, context: Context, record: Record, driver: type[Driver]) -> None:
        self.record = record
        self._store = context.store
        self.machine = Machine(
            name=record.name,
            config=record.config,
            files=record.files,
            save=self.save,
            say=lambda line: say(f"({record.name}) {line}"),
            directory=context.store.directory(record.name),
            scope=context.scope,
            sleep=time.sleep,
        )
        self._loaded = copy.deepcopy(record.config), dict(record.files)
        self.driver = driver(self.machine)

    def save(self) -> None:
        self.record.config, self.record.files = self.machine.config, self.machine.files
        self._store.save(self.record.name, records.write(self.record))

    def save_if_changed(self) -> None:
        """Save only if the record changed, so that commands that only read do not rewrite rancher-machine's records."""
        if (self.machine.config, dict(self.machine.files)) != self._loaded:
            self.save()

    def enter(self, phase: Phase) -> None:
        self.record.phase = phase
        self.save()

    def take_on(self) -> None:
        """Take over the machine before creating or removing it: an older process can then no longer save."""
        self.record.attempt += 1


def native(record: Record) -> type[Driver]:
    found = driver_class(record.driver)
    assert found is not None, "commands on machines of other drivers are handed over before"
    return found


def named(context: Context, names: Sequence[str]) -> list[OpenMachine]:
    """Return the machines of a command; if their drivers are not native, rancher-machine gets the whole command."""
    if not names:
        raise MachineError("Error: Expected to get one or more machine names as arguments")
    found = [context.record(name) for name in names]
    hand_over_others(found)
    return [OpenMachine(context, record, native(record)) for record in found]


def hand_over_others(found: Sequence[Record]) -> None:
    others = [record for record in found if record.driver not in NATIVE]
    if others and len(others) < len(found):
        raise MachineError(
            "some of these machines belong to herder-machine and some to rancher-machine",
            "run the command once for each group",
        )
    if others:
        raise OfOtherProgram
