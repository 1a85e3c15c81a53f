"""Install scripts: a prologue with the manager's parameters, and a static body.

Values in the prologue are quoted for the shell, so that none of them is interpreted.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from herder.api import settings
from herder.api.management.commands import ca_checksum
from herder.api.rke.node.install import STRICT_VERIFY, Variable
from herder.engine.meta.yaml_limits import TooComplex, check_yaml

SCRIPTS = Path(__file__).with_name("scripts")
SHEBANG = "#!/usr/bin/env sh\n"
SCRIPT_PATH = "/usr/local/custom_script/install.sh"
_MAX_BYTES, _MAX_EVENTS = 256 << 10, 5_000  # limits of user data; clouds accept at most 64 KiB


class BadUserData(ValueError):
    """Invalid user data; the message names the field and the problem."""


@dataclass(frozen=True, slots=True)
class ScriptInputs:
    """Parameters of the prologue."""

    server: str
    checksum: str = ""
    strict: bool = True
    serves_agent: bool = True  # the manager serves the agent
    variables: tuple[Variable, ...] = ()  # from the cluster's agentEnvVars
    token: str = field(default="", repr=False)  # bootstrap token of one machine, which needs no roles

    @classmethod
    def of(cls, setting: Callable[[str], str], variables: Iterable[Variable] = (), token: str = "") -> ScriptInputs:
        return cls(
            setting(settings.SERVER_URL).rstrip("/"),
            ca_checksum(setting(settings.SERVER_CERTIFICATES)),
            setting(settings.AGENT_TLS_MODE) == "strict",
            bool(setting(settings.NODE_AGENT_VERSION)),
            tuple(variables),
            token,
        )

    def exported(self) -> Iterable[Variable]:
        yield from self.variables
        if all(name != STRICT_VERIFY for name, _ in self.variables):
            yield STRICT_VERIFY, "true" if self.strict else "false"

    def own(self) -> Iterable[Variable]:
        if self.server and self.serves_agent:
            yield "CATTLE_AGENT_BINARY_BASE_URL", f"{self.server}/assets"
        if self.server:
            yield "CATTLE_SERVER", self.server
        if self.checksum:
            yield "CATTLE_CA_CHECKSUM", self.checksum
        if self.token:
            yield "CATTLE_ROLE_NONE", "true"
            yield "CATTLE_TOKEN", self.token


# --- for shells -----------------------------------------------------------------------------------------------------


def shell_script(inputs: ScriptInputs) -> str:
    exported = "".join(f"export {name}={_sh_quoted(value)}\n" for name, value in inputs.exported())
    own = "".join(f"{name}={_sh_quoted(value)}\n" for name, value in inputs.own())
    return f"{SHEBANG}{exported}{own}\n{_shell_body()}"


def _sh_quoted(value: str) -> str:
    """Between single quotes a POSIX shell interprets nothing but the next single quote."""
    return "'" + value.replace("'", "'\\''") + "'"


@cache
def _shell_body() -> str:
    return "\n".join(part.read_text() for part in sorted((SCRIPTS / "install").glob("*.sh")))


def uninstall_script() -> str:
    return (SCRIPTS / "uninstall.sh").read_text()


# --- for PowerShell -------------------------------------------------------------------------------------------------


def powershell_script(inputs: ScriptInputs) -> str:
    variables = [*inputs.exported(), *inputs.own()]
    return "".join(f"$env:{name} = {_ps_quoted(value)}\n" for name, value in variables) + "\n" + _powershell_body()


_PS_QUOTES = dict.fromkeys(map(ord, "'\u2018\u2019\u201a\u201b"))  # PowerShell treats all of these as quotes


def _ps_quoted(value: str) -> str:
    return "'" + value.translate({quote: chr(quote) * 2 for quote in _PS_QUOTES}) + "'"


@cache
def _powershell_body() -> str:
    return (SCRIPTS / "install.ps1").read_text()


# --- for cloud-init -------------------------------------------------------------------------------------------------


def cloud_config(script: str, userdata: str) -> str:
    """cloud-config for machines of other providers: our files and commands first, then the user's."""
    config = _parsed(userdata)
    written = {
        "content": base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode(),
        "encoding": "gzip+b64",
        "path": SCRIPT_PATH,
        "permissions": "0600",
    }
    merged = {**config, "write_files": [written, *_list(config, "write_files")]}
    merged["runcmd"] = [f"sh {SCRIPT_PATH}", *_list(config, "runcmd")]
    dumped: str = yaml.safe_dump(merged, sort_keys=True, default_flow_style=False, width=1 << 30, allow_unicode=True)
    return f"## template: jinja\n#cloud-config\n{dumped}"


def _parsed(userdata: str) -> dict[str, Any]:
    try:
        check_yaml(userdata, max_bytes=_MAX_BYTES, max_events=_MAX_EVENTS)
        config = yaml.safe_load(userdata)
    except TooComplex as limit:
        raise BadUserData(f"spec.userdata.inlineUserdata: {limit}") from None
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)  # Only the line number: the content may be secret.
        where = f" (line {mark.line + 1})" if mark else ""
        raise BadUserData(f"spec.userdata.inlineUserdata: not YAML{where}") from None
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise BadUserData("spec.userdata.inlineUserdata: must be a mapping, as cloud-config is")
    return config


def _list(config: dict[str, Any], key: str) -> list[Any]:
    found = config.get(key) or []
    if not isinstance(found, list):
        raise BadUserData(f"spec.userdata.inlineUserdata: {key} must be a list")
    return found
