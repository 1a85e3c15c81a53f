"""Arguments and log lines of the `k3s` and `rke2` programs.

Flags come from the command line and from the configuration file, as in the real programs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from herder.agent.core.events import Finished
from herder.sim.host.command import Command
from herder.sim.host.s3 import S3Settings

if TYPE_CHECKING:
    from herder.sim.nodes import SimulatedNode

_SHORT = {"name": "etcd-snapshot-name", "dir": "etcd-snapshot-dir"}
_SNAPSHOT_FLAGS = ("data-dir", "etcd-s3", "etcd-snapshot-name", "etcd-snapshot-dir", "etcd-snapshot-compress")
_OWN_FLAGS = (*_SNAPSHOT_FLAGS, "etcd-snapshot-retention", "debug", "node-name")
_BOOLEANS = (
    "cluster-reset",
    "etcd-s3",
    "etcd-s3-skip-ssl-verify",
    "etcd-s3-insecure",
    "etcd-snapshot-compress",
    "force",
    "help",
)


class CommandFailed(Exception):
    """The program ends with exit code 1 and this error."""

    def __init__(self, message: str, prefix: str = "Error: ") -> None:
        super().__init__(f"{prefix}{message}")


@dataclass(slots=True)
class Invocation:
    """One run of the program: its flags, and what it prints."""

    command: Command
    flags: dict[str, list[str]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # positional arguments
    stdout: str = ""
    stderr: str = ""

    @property
    def node(self) -> SimulatedNode:
        return self.command.node

    @property
    def program(self) -> str:
        return self.command.node.runtime

    # --- flags ------------------------------------------------------------------------------------------------------

    def option(self, name: str, default: str = "") -> str:
        """Value from the command line, else from the configuration."""
        given = self.flags.get(name)
        if given:
            return given[-1]
        configured = self.node.config.get(name)
        return default if configured is None else str(configured)

    def is_set(self, name: str) -> bool:
        return self.option(name).lower() == "true"

    def s3(self) -> S3Settings:
        """Raises CommandFailed if the CA cannot be read."""
        path = self.option("etcd-s3-endpoint-ca")
        authority = self.node.disk.files.get(path, b"") if path else b""
        if path and not isinstance(authority, bytes | str):
            raise CommandFailed(f"open {path}: no such file or directory")
        return S3Settings(
            endpoint=self.option("etcd-s3-endpoint"),
            bucket=self.option("etcd-s3-bucket"),
            folder=self.option("etcd-s3-folder"),
            region=self.option("etcd-s3-region"),
            access_key=self.option("etcd-s3-access-key", self.command.environment.get("AWS_ACCESS_KEY_ID", "")),
            secret_key=self.option("etcd-s3-secret-key", self.command.environment.get("AWS_SECRET_ACCESS_KEY", "")),
            authority=authority.decode() if isinstance(authority, bytes) else authority,
            skip_verify=self.is_set("etcd-s3-skip-ssl-verify"),
            retention=int(self.option("etcd-s3-retention", "5")),
        )

    def warn_unknown_flags(self) -> None:
        for key, value in self.node.config.items():
            if key not in _OWN_FLAGS and not key.startswith("etcd-s3"):
                for _ in value if isinstance(value, list) else (value,):
                    self.log("warning", f"Unknown flag --{key} found in config.yaml, skipping\n")

    # --- output -----------------------------------------------------------------------------------------------------

    def log(self, level: str, message: str) -> None:
        self.stderr += log_line(self.node.context.wall(), level, message)

    def print(self, text: str) -> None:
        self.stdout += text

    def finish(self, exit_code: int = 0) -> Finished:
        return Finished(exit_code, self.stdout.encode(), self.stderr.encode())

    def server_error(self, kind: str, text: str, prefix: str = "") -> CommandFailed:
        """An error inside the server: the caller sees only its ID, the service's log has the text."""
        number = f"{self.node.context.random.randrange(100_000):05}"
        self.node.log(f'level=error msg="{kind} error ID {number}: {text}"')
        return CommandFailed(f"see server log for details: {prefix}{kind} error ID {number}")


def log_line(now: float, level: str, message: str) -> str:
    quoted = json.dumps(message, ensure_ascii=False)
    return f'time="{rfc3339(now)}" level={level} msg={quoted}\n'


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(command: Command, arguments: Sequence[str], booleans: Sequence[str] = _BOOLEANS) -> Invocation:
    found = Invocation(command)
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            found.names.append(argument)
            continue
        given, equals, value = argument.lstrip("-").partition("=")
        name = _long_name(given)
        if not equals:
            value = "true" if name in booleans or not rest else rest.pop(0)
        _check_forms(found.node.config, given, name)
        found.flags.setdefault(name, []).append(value)
    return found


def _long_name(name: str) -> str:
    if name in _SHORT:
        return _SHORT[name]
    if name == "s3" or name.startswith("s3-"):
        return f"etcd-{name}"
    return f"etcd-{name}" if name.startswith("snapshot-") else name


def _check_forms(config: Mapping[str, Any], given: str, name: str) -> None:
    if given != name and name in config:
        raise CommandFailed(f"Cannot use two forms of the same flag: {name} {given}")
