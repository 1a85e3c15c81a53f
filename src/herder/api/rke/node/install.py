"""Validate the inputs of the install script, which runs as root."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from herder.engine.meta.kinds import Object

STRICT_VERIFY = "STRICT_VERIFY"
AGENT_DIRECTORY = "CATTLE_AGENT_VAR_DIR"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIRECTORY = re.compile(r"(?:/[A-Za-z0-9._-]+)+")
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # no value needs them, and no shell preserves all of them

Variable = tuple[str, str]


class BadVariable(ValueError):
    """An environment variable or directory is invalid; the message names the field and what to do."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field, self.detail = field, detail


def agent_variables(spec: Mapping[str, object]) -> tuple[Variable, ...]:
    """Return the environment of a cluster's node agents, from its RKEControlPlane's spec. Raises BadVariable."""
    given = spec.get("agentEnvVars") or ()
    assert isinstance(given, Sequence)
    chosen = [agent_variable(f"agentEnvVars[{number}]", each) for number, each in enumerate(given)]
    directories = spec.get("dataDirectories") or {}
    assert isinstance(directories, Mapping)
    # The agent's directory is the same on all machines, so only its own field can set it.
    kept = [variable for variable in chosen if variable[0] != AGENT_DIRECTORY and variable[1]]
    directory = checked_directory("dataDirectories.systemAgent", str(directories.get("systemAgent") or ""))
    return (*kept, (AGENT_DIRECTORY, directory)) if directory else tuple(kept)


def agent_variable(field: str, variable: Object) -> Variable:
    """Validate one entry of agentEnvVars. Raises BadVariable."""
    name, value = str(variable.get("name") or ""), str(variable.get("value") or "")
    if not _NAME.fullmatch(name):
        raise BadVariable(
            f"{field}.name", f'"{name}" is not a valid environment variable name; use letters, digits and _'
        )
    if _UNSAFE.search(value):
        raise BadVariable(f"{field}.value", f"control characters are not allowed; remove them from {name}")
    return name, value


def checked_directory(field: str, directory: str) -> str:
    """Validate a directory; "" if none is set. Raises BadVariable."""
    if directory and not _DIRECTORY.fullmatch(directory):
        raise BadVariable(field, f'"{directory}" must be an absolute path of letters, digits and ._-')
    return directory
