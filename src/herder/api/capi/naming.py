"""Names that the core makes up: of Machines (by a template), of labels that may be too long, and short hashes."""

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
    """A template that cannot be rendered; the text says what in it is not understood."""


def machine_name(template: str, cluster: str, machine_set: str, random: str) -> str:
    """The name that a template (the default where it is empty) gives to a Machine.

    A name that grows too long is cut, and made unique again by the random part.
    """
    values = {".cluster.name": cluster, ".machineSet.name": machine_set, ".random": random}

    def value_of(action: re.Match[str]) -> str:
        field = action[1].removeprefix("-").removesuffix("-").strip()
        if field not in values:
            raise NamingError(f"{action[0]} is not one of {', '.join(f'{{{{ {known} }}}}' for known in values)}")
        return values[field]

    name = _ACTION.sub(value_of, template or DEFAULT_MACHINE_TEMPLATE)
    if "{{" in name:
        raise NamingError("a {{ is never closed")
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - RANDOM_LENGTH] + random


def set_name_label(name: str) -> str:
    """A name as the value of a label: itself, or a hash where it does not fit."""
    if not names.label_value(name):
        return name
    digest = base64.urlsafe_b64encode(fnv32a(name.encode()).to_bytes(4, "big")).decode().rstrip("=")
    return f"hash_{digest}_z"


def template_hash(template: Object) -> str:
    """The same for equal templates, whatever the order of their fields; short enough for a label."""
    return str(fnv32a(json.dumps(template, sort_keys=True, separators=(",", ":")).encode()))


def fnv32a(content: bytes) -> int:
    digest = 0x811C9DC5
    for byte in content:
        digest = ((digest ^ byte) * 0x01000193) & 0xFFFFFFFF
    return digest
