"""Secrets that references name, and a user who writes references with few rights."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herder.api.references.approvals import APPROVED
from tests.support.api import Api
from tests.support.manager.admission_servers import provisioning_cluster
from tests.support.rbac import grant

EVERYTHING_OF_OURS = [
    {"apiGroups": ["provisioning.cattle.io", "rke-machine-config.cattle.io"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
]


@pytest.fixture
async def admin(admission_admin: Api) -> Api:
    """The administrator, in a namespace of the test's own."""
    return await admission_admin.in_new_namespace()


@pytest.fixture
async def mallory(admin: Api) -> Api:
    """A user who may write Clusters and create Secrets in the namespace, but read none of its Secrets."""
    await grant(admin, "mallory", "mallory", EVERYTHING_OF_OURS)
    return admin.as_user("mallory")


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
