"""The plan of a node, in the JSON that its agent reads: files, instructions, probes.

The bytes are those that Go would marshal (field order, omitempty, escaped HTML characters): agents and controllers
identify a plan by its sha256.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

import msgspec

from herder.api import gojson

DELETE = "delete"  # action of a File: delete the path
AGENT_STATUS = "cluster-agent-status"  # periodic instruction that only reads: prints why the cluster agent's pod waits
CERTIFICATE_EXPIRY = "certificate-expiry"  # periodic instruction that only reads: prints when certificates expire
SNAPSHOT_HASHES = (
    "snapshot-hashes"  # periodic instruction: prints the hashes of snapshots, and remembers them in a file
)
_REPORTS = (AGENT_STATUS, CERTIFICATE_EXPIRY, SNAPSHOT_HASHES)


class File(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A file on the node; `content` is base64.

    A *dynamic* file does not restart anything when it changes; a *minor* one is written without regard to upgrade
    concurrency.
    """

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
    """A command that runs once per plan; `image` is unpacked first, and the command runs in it."""

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
    """An HTTP probe. Paths are those of the node. A probe whose CA file is missing is tried without it."""

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
    error: str = ""  # error message of the planner; agents ignore it
    probes: Mapping[str, Probe] = msgspec.field(default_factory=dict)

    def to_json(self) -> bytes:
        return gojson.escape_html(
            msgspec.json.encode(msgspec.structs.replace(self, probes=dict(sorted(self.probes.items()))))
        )

    def disruptive_parts(self) -> tuple[object, ...]:
        """Return everything but minor and deleted files and instructions that only report: plans that are equal here
        differ in nothing disruptive.
        """
        files = {each.path: each for each in self.files if not each.minor and each.action != DELETE}
        periodic = tuple(each for each in self.periodic_instructions if each.name not in _REPORTS)
        return files, self.instructions, periodic, dict(self.probes), self.error

    @property
    def reports_agent(self) -> bool:
        """Whether the machine reports why the pod of the cluster agent does not start."""
        return any(each.name == AGENT_STATUS for each in self.periodic_instructions)

    @property
    def reports_certificates(self) -> bool:
        """Whether the machine reports when its certificates expire."""
        return any(each.name == CERTIFICATE_EXPIRY for each in self.periodic_instructions)

    @property
    def reports_snapshots(self) -> bool:
        """Whether the machine reports the hashes of the snapshots on its disk."""
        return any(each.name == SNAPSHOT_HASHES for each in self.periodic_instructions)

    def without_reports(self, *names: str) -> Plan:
        left = tuple(each for each in self.periodic_instructions if each.name not in names)
        return msgspec.structs.replace(self, periodic_instructions=left)

    @staticmethod
    def from_json(encoded: bytes) -> Plan:
        """Decode a plan, ignoring unknown fields as agents do; raise ValueError if it is invalid."""
        return msgspec.json.decode(encoded, type=Plan)


def checksum(encoded: bytes) -> str:
    """Return the sha256 of a plan's bytes, which agents report as applied or failed."""
    return hashlib.sha256(encoded).hexdigest()
