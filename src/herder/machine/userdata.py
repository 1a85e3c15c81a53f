"""Merge an install script with the user's cloud-init data.

The result is always a `#cloud-config`: the script becomes a file that is run last, after the user's commands.
"""

from __future__ import annotations

import base64
import gzip
import re
from dataclasses import dataclass
from typing import Any

import yaml

from herder.machine.errors import MachineError

CLOUD_CONFIG = b"#cloud-config"
JINJA = b"## template: jinja"
_SHEBANG = re.compile(rb"\A#!.*\n?")


@dataclass(frozen=True, slots=True)
class _System:
    path: str
    shell: str
    hostname_key: str


_LINUX = _System("/usr/local/custom_script/install.sh", "sh", "hostname")
_WINDOWS = _System("C:\\install.ps1", "powershell", "set_hostname")  # as cloudbase-init expects


def is_cloud_config(data: bytes) -> bool:
    """Whether it is for cloud-init rather than a shell."""
    return _without_jinja(data).startswith(CLOUD_CONFIG)


def cloud_config(script: bytes, user: bytes = b"", *, hostname: str, windows: bool = False) -> bytes:
    """Return one `#cloud-config` of an install script (or another `#cloud-config`) and the user's data."""
    _refuse_ignition(script)
    system = _WINDOWS if windows else _LINUX
    config: dict[str, Any] = {}
    if is_cloud_config(user):
        config = _parsed(user, "the user data")
    elif user.startswith(b"#!"):
        if is_cloud_config(script):
            _add_script(config, _SHEBANG.sub(b"", user), system)
        else:
            script = _SHEBANG.sub(b"", user) + b"\n\n" + _SHEBANG.sub(b"", script)
    elif user.strip():
        raise MachineError(
            "the user data is neither a script nor a #cloud-config",
            "start it with #! or #cloud-config, which can be merged with the install script",
        )
    if is_cloud_config(script):
        config = _merged(config, _parsed(script, "the bootstrap data"))
    else:
        _add_script(config, _SHEBANG.sub(b"", script), system)
    config.setdefault(system.hostname_key, hostname)
    header = JINJA + b"\n" if user.startswith(JINJA) or script.startswith(JINJA) else b""
    return header + CLOUD_CONFIG + b"\n" + _dumped(config)


def _add_script(config: dict[str, Any], body: bytes, system: _System) -> None:
    written = {
        "encoding": "gzip+b64",
        "content": base64.b64encode(gzip.compress(body, mtime=0)).decode(),
        "permissions": "0600",
        "path": system.path,
    }
    _append(config, "write_files", [written])
    _append(config, "runcmd", [f"{system.shell} {system.path}"])


def _append(config: dict[str, Any], key: str, items: list[Any]) -> None:
    before = config.get(key)
    if before is not None and not isinstance(before, list):
        raise MachineError(
            f"the user data has a {key} that is not a list", "make it a list, so that the install script can be added"
        )
    config[key] = [*(before or []), *items]


def _merged(user: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Append lists, merge mappings; for scalars the user's value wins."""
    merged = dict(user)
    for key, value in other.items():
        mine = merged.get(key)
        if isinstance(value, list):
            _append(merged, key, value)
        elif isinstance(value, dict) and isinstance(mine, dict):
            merged[key] = _merged(mine, value)
        elif mine is None:
            merged[key] = value
    return merged


def _parsed(data: bytes, what: str) -> dict[str, Any]:
    advice = ""
    if data.startswith(JINJA):
        advice = "it is a jinja template: put quotes around its {{ expressions }}, and use no {% statements %}"
    try:
        config = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)  # only the line number: the text may be secret
        where = f" (line {mark.line + 1})" if mark else ""
        raise MachineError(f"{what}: not YAML{where}", advice or "correct it") from None
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise MachineError(f"{what}: a cloud-config must be a mapping")
    return config


def _dumped(config: dict[str, Any]) -> bytes:
    text: str = yaml.safe_dump(config, sort_keys=False, default_flow_style=False, width=1 << 30, allow_unicode=True)
    return text.encode()


def _without_jinja(data: bytes) -> bytes:
    return data.partition(b"\n")[2].lstrip() if data.startswith(JINJA) else data


def _refuse_ignition(script: bytes) -> None:
    if script.lstrip().startswith(b"{") and b'"ignition"' in script[:4096]:
        raise MachineError(
            "Ignition bootstrap data is not supported",
            "set the field `format` of the bootstrap provider to cloud-config",
        )
