"""Generated names: Machine names from a template, label values that fit, and short hashes."""

from __future__ import annotations

import base64
import json
import re

from herder.engine.meta import names
from herder.engine.meta.kinds import Object

MAX_NAME = 63
RANDOM_LENGTH = 5
RANDOM = "{{ .random }}"
DEFAULT_MACHINE_TEMPLATE = f"{{{{ .machineSet.name }}}}-{RANDOM}"

_ACTION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


class NamingError(ValueError):
    """A Machine name template cannot be rendered; the message names the unsupported action."""


def machine_name(template: str, cluster: str, machine_set: str, random: str) -> str:
    """Render a Machine name from a template, or from the default template if it is empty.

    A name that is too long is truncated, and made unique by the random suffix.
    """
    values = {".cluster.name": cluster, ".machineSet.name": machine_set, ".random": random}

    def value_of(action: re.Match[str]) -> str:
        field = action[1].removeprefix("-").removesuffix("-").strip()
        if field not in values:
            raise NamingError(f"{action[0]} is not one of {', '.join(f'{{{{ {known} }}}}' for known in values)}")
        return values[field]

    name = _ACTION.sub(value_of, template or DEFAULT_MACHINE_TEMPLATE)
    if "{{" in name:
        raise NamingError("unclosed {{")
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - RANDOM_LENGTH] + random


def set_name_label(name: str) -> str:
    """Return a name as a label value: the name itself, or a hash if it does not fit."""
    if not names.label_value(name):
        return name
    digest = base64.urlsafe_b64encode(fnv32a(name.encode()).to_bytes(4, "big")).decode().rstrip("=")
    return f"hash_{digest}_z"


def template_hash(template: Object) -> str:
    """Return a hash that is equal for equal templates, independent of field order, and fits into a label."""
    return str(fnv32a(json.dumps(template, sort_keys=True, separators=(",", ":")).encode()))


def fnv32a(content: bytes) -> int:
    digest = 0x811C9DC5
    for byte in content:
        digest = ((digest ^ byte) * 0x01000193) & 0xFFFFFFFF
    return digest
