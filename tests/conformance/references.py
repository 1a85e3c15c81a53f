"""Secrets that references name, and the rights of a user who writes references."""

from __future__ import annotations

import json
from typing import Any

from herder.api.references.approvals import APPROVED
from tests.support.admission_servers import provisioning_cluster

EVERYTHING_OF_OURS = [
    {"apiGroups": ["provisioning.cattle.io", "rke-machine-config.cattle.io"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
]


def secret(name: str, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": annotations}, "stringData": {"key": "value"}}


def reading(*names: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [*names], "verbs": ["get"]}


def with_credential(place: str) -> dict[str, Any]:
    cluster = provisioning_cluster()
    cluster["spec"]["cloudCredentialSecretName"] = place
    return cluster


def record(obj: Any) -> list[dict[str, str]] | None:
    text = (obj["metadata"].get("annotations") or {}).get(APPROVED)
    return json.loads(text) if text is not None else None
