"""Node agents: the one that the manager serves, and those that machines report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from herder.engine.meta.kinds import Object

ASSET = "herder-agent.pyz"
"""Name of the agent among the downloads of the manager."""
OWN_SOURCES = ("CATTLE_AGENT_BINARY_URL", "CATTLE_AGENT_BINARY_BASE_URL")
"""Variables in agentEnvVars that make machines install another agent than the one that the manager serves."""
_VERSION_VARIABLE, _CHECKSUM_VARIABLE = "AGENT_VERSION", "AGENT_CHECKSUM"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:[.-]?(dev|a|b|rc)\.?(\d{1,9}))?")
_STAGES = ("dev", "a", "b", "rc", "")
"""Of a version before its release, in their order; the release itself is last."""


class AgentState(Enum):
    CURRENT = "current"
    OUTDATED = "outdated"  # an older version, or another build of the same one
    NEWER = "newer"
    UNREPORTED = "unreported"  # an agent of an earlier version, or another program

    @property
    def is_redeployed(self) -> bool:
        return self in (AgentState.OUTDATED, AgentState.UNREPORTED)


@dataclass(frozen=True)
class ServedAgent:
    """The agent that the manager serves."""

    version: str
    checksum: str  # SHA-256

    def __str__(self) -> str:
        return f"{self.version} {self.checksum}"

    @property
    def environment(self) -> tuple[str, str]:
        """Variables of the task that installs it."""
        return f"{_VERSION_VARIABLE}={self.version}", f"{_CHECKSUM_VARIABLE}={self.checksum}"

    @staticmethod
    def in_environment(variables: Sequence[str]) -> ServedAgent | None:
        """The agent that a task with these variables installs."""
        found = dict(each.partition("=")[::2] for each in variables)
        return ServedAgent.of(f"{found.get(_VERSION_VARIABLE, '')} {found.get(_CHECKSUM_VARIABLE, '')}")

    @staticmethod
    def of(text: str) -> ServedAgent | None:
        """Parse the value of the setting; None if the process serves no agent."""
        version, _, checksum = text.partition(" ")
        return ServedAgent(version, checksum) if _SHA256.fullmatch(checksum) else None

    def compare(self, version: str, checksum: str) -> AgentState:
        """The state of a machine that reports this agent."""
        if not checksum:
            return AgentState.UNREPORTED
        if checksum == self.checksum:
            return AgentState.CURRENT
        return AgentState.NEWER if is_newer(version, self.version) else AgentState.OUTDATED


def is_newer(version: str, than: str) -> bool:
    """Whether a version is higher. One that cannot be read is not."""
    found, known = _key(version), _key(than)
    return found is not None and known is not None and found > known


def _key(version: str) -> tuple[int, ...] | None:
    found = _VERSION.fullmatch(version)
    if found is None:
        return None
    major, minor, patch, stage, number = found.groups()
    return int(major), int(minor), int(patch), _STAGES.index(stage or ""), int(number or 0)


def own_source(spec: Object) -> str:
    """Name of the variable by which machines of this cluster install another agent; empty if they do not."""
    given = {each.get("name") for each in spec.get("agentEnvVars") or () if each.get("value")}
    return next((name for name in OWN_SOURCES if name in given), "")
