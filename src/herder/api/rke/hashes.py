"""Template hashes, compatible with upstream.

Cluster API replaces machines when the template's name changes, so labels, taints and credentials are not part of the
hash.
"""

from __future__ import annotations

import hashlib
from typing import Any

from herder.api import gojson
from herder.engine.meta.kinds import Object

_LENGTH = 8


def machine_template_hash(machine_deployment: str, machine_spec: Object) -> str:
    infrastructure = {name: value for name, value in machine_spec.items() if name != "common" and not _is_empty(value)}
    return _hash(machine_deployment.encode() + gojson.marshal(infrastructure))


def bootstrap_template_hash(machine_deployment: str, inline_userdata: str) -> str:
    return _hash(f"{machine_deployment}{inline_userdata}".encode())


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value == []


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_LENGTH]
