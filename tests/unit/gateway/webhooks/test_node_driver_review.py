"""The webhook of NodeDrivers: reviews, and a configuration apart from that of Cluster API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from herder.api.capi.core import VALIDATING_WEBHOOKS
from herder.api.machines.kinds import NODE_DRIVER
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import Object
from herder.gateway.webhooks.configurations import MACHINES, Url, rendered
from herder.gateway.webhooks.node_driver_review import answer
from tests.unit.engine.runtime.envtest import Environment
from tests.unit.gateway.admission.test_node_drivers import deactivated, env, node_driver, stored

__all__ = ["env"]

PATH = "/validate-management-cattle-io-v3-nodedriver"


def new_review(old: Any, new: Any, kind: str = "NodeDriver") -> bytes:
    kind_fields = {"group": NODE_DRIVER.group, "version": NODE_DRIVER.version, "kind": kind}
    operation = "DELETE" if new is None else "UPDATE"
    request = {"uid": "u-1", "kind": kind_fields, "operation": operation, "object": new, "oldObject": old}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


async def send(env: Environment, old: Object, new: Object | None) -> Object:
    response: Object = msgspec.json.decode(await answer(env.client, new_review(old, new)))["response"]
    assert response["uid"] == "u-1"
    return response


async def test_a_rejection_is_a_status(env: Environment) -> None:
    driver = await stored(env, node_driver())
    deactivation, deletion = await send(env, driver, deactivated(driver)), await send(env, driver, None)
    assert (deactivation["allowed"], deletion["allowed"]) == (False, False)
    assert (deactivation["status"]["code"], deletion["status"]["code"]) == (422, 403)
    assert [cause["field"] for cause in deactivation["status"]["details"]["causes"]] == ["spec.active"]
    assert "LinodeConfig default/small" in deletion["status"]["message"]


async def test_everything_else_is_allowed(env: Environment) -> None:
    driver = await stored(env, node_driver("vultr", driver="vultr"))
    assert await send(env, driver, driver) == {"uid": "u-1", "allowed": True}
    assert await send(env, driver, None) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        new_review(None, None),
        new_review(None, node_driver()),
        new_review({}, "new"),
        new_review({}, {}, "X"),
    ],
)
async def test_an_invalid_review_is_a_bad_request(env: Environment, body: bytes) -> None:
    with pytest.raises(BadRequest):
        await answer(env.client, body)


def test_the_webhook_covers_updates_and_deletions_of_node_drivers() -> None:
    (configuration,) = MACHINES
    manifest = rendered(configuration, Url("https://192.0.2.1:9443"), b"PEM")
    assert (manifest["kind"], manifest["metadata"]["name"]) == (VALIDATING_WEBHOOKS.kind, "herder-machines")
    (webhook,) = manifest["webhooks"]
    assert webhook["clientConfig"]["url"] == f"https://192.0.2.1:9443{PATH}"
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["rules"] == [
        {
            "operations": ["UPDATE", "DELETE"],
            "apiGroups": ["management.cattle.io"],
            "apiVersions": ["v3"],
            "resources": ["nodedrivers"],
            "scope": "Cluster",
        }
    ]
