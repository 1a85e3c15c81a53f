"""Admission looks at rights besides that on the object. If they end while the write waits, they do not count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.identity.roles import RBAC
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.secret_sync import SYNC, TARGET_NAMESPACE
from herder.api.rke.names import AUTHORIZED_CLUSTERS
from herder.app.admission.kinds import install_reference_admission
from herder.engine import wire
from herder.engine.apiserver.build import ApiServer
from herder.engine.apiserver.compute import LARGE_BYTES, ThreadExecutor
from herder.engine.apiserver.request.limits import check_stored_size
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from tests.support.builders import new_manifest
from tests.unit.gateway.gateway_server import ADMIN, GatewayServer, create_namespace, running_gateway
from tests.unit.gateway.test_waiting_requests import TEAM, send, user


@pytest.fixture(autouse=True)
def every_wait_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "RECHECK_SECONDS", 0.0)


@dataclass
class LastStep:
    """Lets large requests wait for their last step in the thread, after admission."""

    waiting: asyncio.Event
    may_continue: asyncio.Event


@pytest.fixture
def last_step(monkeypatch: pytest.MonkeyPatch) -> LastStep:
    step = LastStep(asyncio.Event(), asyncio.Event())
    run = ThreadExecutor.run

    async def run_later(executor: ThreadExecutor, name: str, function: Callable[[], Any]) -> Any:
        if name == "u-grants" and getattr(function, "func", None) is check_stored_size:
            step.waiting.set()
            await step.may_continue.wait()
        return await run(executor, name, function)

    monkeypatch.setattr(ThreadExecutor, "run", run_later)
    return step


async def grant(gateway: GatewayServer, role: str, *rules: Object) -> Object:
    """Grant the rules to the user in the namespace. Return the binding."""
    await gateway.client.apply(ROLE.resource, new_manifest(ROLE, role, TEAM) | {"rules": list(rules)})
    binding = new_manifest(ROLE_BINDING, role, TEAM) | {"roleRef": role_ref(role)}
    binding["subjects"] = [{"apiGroup": RBAC, "kind": "User", "name": "u-grants"}]
    return await gateway.client.apply(ROLE_BINDING.resource, binding)


def role_ref(role: str) -> Object:
    return {"apiGroup": RBAC, "kind": ROLE.kind, "name": role}


def rule(group: str, resource: str, *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


ENLARGED = {"example.com/x": "A" * LARGE_BYTES}
CLUSTERS = PROVISIONING_CLUSTER.resource
BINDING = new_manifest(ROLE_BINDING, "more", TEAM) | {"roleRef": role_ref("admins"), "subjects": []}
SYNCED = {SYNC: "true", AUTHORIZED_CLUSTERS: "victim", TARGET_NAMESPACE: "kube-system"}
GRANTS: dict[str, tuple[Kind, str, Object, Object]] = {
    "rights that the author grants": (ROLE_BINDING, "POST", BINDING, rule(RBAC, "roles", "bind")),
    "a cluster that gets a Secret": (
        SECRET,
        "POST",
        new_manifest(SECRET, "synced", TEAM, annotations=SYNCED),
        rule(CLUSTERS.group, CLUSTERS.resource, "update"),
    ),
    "the right to create": (ROLE, "PUT", new_manifest(ROLE, "created", TEAM), rule(RBAC, "roles", "create")),
}


@pytest.mark.parametrize(("kind", "method", "obj", "needed"), GRANTS.values(), ids=GRANTS)
async def test_rights_that_admission_checks_do_not_end_in_the_thread(
    kind: Kind,
    method: str,
    obj: Object,
    needed: Object,
    tmp_path_factory: pytest.TempPathFactory,
    last_step: LastStep,
) -> None:
    """A write can need rights besides that on its object, such as on the objects that it references."""
    async with running_gateway("embedded", tmp_path_factory.mktemp("front")) as gateway:
        await create_namespace(gateway.client, TEAM)
        api = gateway.parts.gateway._api
        assert isinstance(api, ApiServer)
        install_reference_admission(api, gateway.client, ADMIN)
        await gateway.client.create(CLUSTERS, new_manifest(PROVISIONING_CLUSTER, "victim", TEAM), namespace=TEAM)
        await gateway.client.apply(ROLE.resource, new_manifest(ROLE, "admins", TEAM) | {"rules": [rule("*", "*", "*")]})
        bearer, _ = await user(gateway, "u-grants")
        await gateway.client.delete(ROLE_BINDING.resource, "u-grants", namespace=TEAM)
        verb = "create" if method == "POST" else "update"
        await grant(gateway, "writer", rule(kind.group, kind.plural, verb))
        await grant(gateway, "needed", needed)
        metadata = {**obj["metadata"], "annotations": obj["metadata"].get("annotations", {}) | ENLARGED}
        path = kind.resource.path(TEAM, "" if method == "POST" else metadata["name"])
        request = await send(gateway, path, bearer, {**obj, "metadata": metadata}, method)
        async with asyncio.timeout(10):
            await last_step.waiting.wait()
        await gateway.client.delete(ROLE_BINDING.resource, "needed", namespace=TEAM)
        last_step.may_continue.set()
        assert await request.status() == 403
        with pytest.raises(NotFound):
            await gateway.client.get(kind.resource, metadata["name"], namespace=TEAM)
