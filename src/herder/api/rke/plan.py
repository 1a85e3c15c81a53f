"""What a node shall do, in the bytes that its agent reads: files, instructions, probes.

The bytes are those that Go would marshal (order of fields, nothing that is zero, HTML characters escaped): their sha256
is how agents and controllers tell one plan from another.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

import msgspec

from herder.api import gojson

DELETE = "delete"  # a File's action: what is at the path goes


class File(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`content` is base64. *Dynamic* files restart nothing when they change; *minor* ones wait for no turn."""

    content: str = ""
    directory: bool = False
    uid: int = 0
    gid: int = 0
    path: str = ""
    permissions: str = ""  # octal; the agent's default is 0600
    action: str = ""
    dynamic: bool = False
    minor: bool = False

    @property
    def decoded(self) -> bytes:
        return base64.b64decode(self.content)


def file(path: str, content: bytes | str, *, permissions: str = "", dynamic: bool = False, minor: bool = False) -> File:
    raw = content.encode() if isinstance(content, str) else content
    encoded = base64.b64encode(raw).decode()
    return File(path=path, content=encoded, permissions=permissions, dynamic=dynamic, minor=minor)


class Instruction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    """Run once for each plan; `image` is unpacked first, and is where the command runs."""

    name: str = ""
    image: str = ""
    env: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    command: str = ""
    script: str = ""
    save_output: bool = False


class PeriodicInstruction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    name: str = ""
    image: str = ""
    env: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    command: str = ""
    script: str = ""
    period_seconds: int = 0  # the agent's default is 600
    save_stderr_output: bool = False


class HttpGet(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    """Paths are the node's. A probe whose CA is missing is tried without it."""

    url: str = ""
    insecure: bool = False
    client_cert: str = ""
    client_key: str = ""
    ca_cert: str = ""


class Probe(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    name: str = ""
    initial_delay_seconds: int = 0
    timeout_seconds: int = 0  # none
    success_threshold: int = 0  # the agent's default is 1
    failure_threshold: int = 0  # the agent's default is 3
    http_get: HttpGet = msgspec.field(default_factory=lambda: HttpGet())  # written even when empty


class Plan(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    files: tuple[File, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    periodic_instructions: tuple[PeriodicInstruction, ...] = ()
    error: str = ""  # the planner's own words; agents do not read them
    probes: Mapping[str, Probe] = msgspec.field(default_factory=dict)

    def to_json(self) -> bytes:
        return gojson.escaped(
            msgspec.json.encode(msgspec.structs.replace(self, probes=dict(sorted(self.probes.items()))))
        )

    def lasting(self) -> tuple[object, ...]:
        """All of it but files that may change at any time, and those that are gone: plans that agree in this differ in
        nothing that disturbs."""
        files = {each.path: each for each in self.files if not each.minor and each.action != DELETE}
        return files, self.instructions, self.periodic_instructions, dict(self.probes), self.error

    @staticmethod
    def from_json(encoded: bytes) -> Plan:
        """What this does not know is left out, as agents do. ValueError for what is no plan."""
        return msgspec.json.decode(encoded, type=Plan)


def checksum(encoded: bytes) -> str:
    """Of a plan's bytes: what agents report as applied or failed."""
    return hashlib.sha256(encoded).hexdigest()
