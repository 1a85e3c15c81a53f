"""The webhook of NodeDrivers: question and answer, and a configuration that is not Cluster API's."""

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
from tests.unit.engine.runtime.world import World
from tests.unit.gateway.test_drivers import here, node_driver, off, stored

__all__ = ["here"]

PATH = "/validate-management-cattle-io-v3-nodedriver"


def question(old: Any, new: Any, kind: str = "NodeDriver") -> bytes:
    told = {"group": NODE_DRIVER.group, "version": NODE_DRIVER.version, "kind": kind}
    operation = "DELETE" if new is None else "UPDATE"
    request = {"uid": "u-1", "kind": told, "operation": operation, "object": new, "oldObject": old}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


async def ask(here: World, old: Object, new: Object | None) -> Object:
    response: Object = msgspec.json.decode(await answer(here.client, question(old, new)))["response"]
    assert response["uid"] == "u-1"
    return response


async def test_a_refusal_is_a_status(here: World) -> None:
    driver = await stored(here, node_driver())
    switched_off, deleted = await ask(here, driver, off(driver)), await ask(here, driver, None)
    assert (switched_off["allowed"], deleted["allowed"]) == (False, False)
    assert (switched_off["status"]["code"], deleted["status"]["code"]) == (422, 403)
    assert [cause["field"] for cause in switched_off["status"]["details"]["causes"]] == ["spec.active"]
    assert "LinodeConfig default/small" in deleted["status"]["message"]


async def test_everything_else_is_allowed(here: World) -> None:
    driver = await stored(here, node_driver("vultr", driver="vultr"))
    assert await ask(here, driver, driver) == {"uid": "u-1", "allowed": True}
    assert await ask(here, driver, None) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", question(None, None), question(None, node_driver()), question({}, "new"), question({}, {}, "X")],
)
async def test_what_is_no_question_is_a_bad_request(here: World, body: bytes) -> None:
    with pytest.raises(BadRequest):
        await answer(here.client, body)


def test_it_is_asked_about_updates_and_deletions_of_node_drivers() -> None:
    (configuration,) = MACHINES
    made = rendered(configuration, Url("https://192.0.2.1:9443"), b"PEM")
    assert (made["kind"], made["metadata"]["name"]) == (VALIDATING_WEBHOOKS.kind, "herder-machines")
    (webhook,) = made["webhooks"]
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
