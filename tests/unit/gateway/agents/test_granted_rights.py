"""Members use a restored cluster only after their rights in it were compared with the bindings of the manager."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import NAMESPACE
from herder.api.identity import roles
from herder.api.identity.authn.tokens import NewToken
from herder.api.identity.builtin_roles import ROLE_TEMPLATES
from herder.api.identity.crds import CRDS as IDENTITY_CRDS
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management.clusters import CONNECTED, connected_since
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import CLUSTER_BINDING, MANAGEMENT_CLUSTER, PROJECT_BINDING, ROLE_TEMPLATE, USER
from herder.api.management.names import CONNECTED_SINCE
from herder.api.management.registration import Tokens
from herder.api.rke.crds import CRDS
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.operations import RESTORE
from herder.app.install import install_kinds
from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client, Page
from herder.engine.front.http import HttpFront
from herder.engine.meta.errors import ServiceUnavailable, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import Request, Response, User
from herder.gateway.agents import granted_rights
from herder.gateway.agents.clusters import Clusters
from herder.gateway.agents.granted_rights import BEING_RESTORED, CONNECTING, LEFTOVERS, NOT_YET, GrantedRights
from herder.tunnel.errors import TunnelError
from tests.support.builders import new_manifest
from tests.unit.engine.runtime.envtest import Wire, environment
from tests.unit.gateway.agents.test_returning_agents import CA, HOST, Harness, pem
from tests.unit.gateway.gateway_server import (
    ADMIN,
    GatewayServer,
    create_account_token,
    create_namespace,
    running_gateway,
)
from tests.unit.gateway.managed_clusters import create_managed_cluster, serving_context

CLUSTER, PROJECT = "c-m-restored", "c-m-restored-p-team1"
RESTORED = datetime(2026, 1, 1, tzinfo=UTC)
BOB = User("bob", groups=("staff",))


async def create_restored(client: Client, cluster: str, ended: datetime, phase: str = "Finished") -> None:
    spec = {"clusterName": "x", "kubernetesVersion": "v1.33.5+k3s1", "managementClusterName": cluster}
    plane = new_manifest(CONTROL_PLANE, cluster, "fleet-default", spec=spec)
    await client.create(CONTROL_PLANE.resource, plane, namespace="fleet-default")
    await set_restored(client, cluster, ended, phase)


async def set_restored(client: Client, cluster: str, ended: datetime, phase: str = "Finished") -> None:
    run = {"id": "one", "kind": RESTORE, "phase": phase, "startedAt": timestamp(ended), "timings": {"Shutdown": 1}}
    patch = {"status": {"operation": {**run, "phaseStartedAt": timestamp(ended)}}}
    await client.patch(CONTROL_PLANE.resource, cluster, patch, namespace="fleet-default", subresource="status")


# --- the comparison ---------------------------------------------------------------------------------------------------


@dataclass
class Site:
    """The manager, and a cluster that was restored."""

    manager: Client
    cluster: Client
    clusters: Clusters
    rights: GrantedRights
    wire: Wire  # to the cluster

    async def report(self, since: datetime | None, address: str = "a") -> None:
        """Record that an agent is connected, or none, and the address of its API server."""
        annotations = {CONNECTED_SINCE: timestamp(since) if since else None}
        status = {"apiEndpoint": f"https://{address}"}
        await self.manager.patch(MANAGEMENT_CLUSTER.resource, CLUSTER, {"metadata": {"annotations": annotations}})
        await self.manager.patch(MANAGEMENT_CLUSTER.resource, CLUSTER, {"status": status}, subresource="status")
        async with asyncio.timeout(10):
            while not self._is_reported(since, status["apiEndpoint"]):
                await asyncio.sleep(0.01)

    def _is_reported(self, since: datetime | None, endpoint: str) -> bool:
        found = self.clusters.get(CLUSTER) or {"metadata": {}}
        is_since = connected_since(found) == (timestamp(since) if since else "")
        return is_since and (found.get("status") or {}).get("apiEndpoint") == endpoint

    async def create(self, kind: Kind, name: str, template: str, namespace: str = CLUSTER) -> Object:
        """A binding of bob in the manager."""
        fields = {"projectName": "c-m-restored:p-team1"} if kind == PROJECT_BINDING else {"clusterName": CLUSTER}
        binding = new_manifest(kind, name, namespace, userName="bob", roleTemplateName=template, **fields)
        return await self.manager.create(kind.resource, binding, namespace=namespace)

    async def grant(self, binding: Object, template: str, namespace: str = "") -> None:
        """What the manager creates in the cluster for a binding of bob to this template."""
        await grant(self.cluster, binding, template, namespace)


async def grant(cluster: Client, binding: Object, template: str, namespace: str = "") -> None:
    """What the manager creates in a cluster for a binding of bob to this template."""
    shipped = {each["metadata"]["name"]: each for each in ROLE_TEMPLATES}
    subject = {"apiGroup": RBAC, "kind": "User", "name": "bob"}
    role, names = roles.downstream_roles(shipped[template], shipped.get)
    if role is not None:
        await cluster.apply(CLUSTER_ROLE.resource, role)
    found = (
        roles.project_bindings(binding, subject, names, [namespace])
        if namespace
        else roles.downstream_bindings(binding, subject, names)
    )
    for each in found:
        await cluster.apply((ROLE_BINDING if namespace else CLUSTER_ROLE_BINDING).resource, each)


@asynccontextmanager
async def restored_site() -> AsyncIterator[Site]:
    async with environment() as manager, environment() as cluster:
        await install_kinds(manager.outside, [*CRDS, *MANAGEMENT_CRDS, *IDENTITY_CRDS])
        for name in ("fleet-default", CLUSTER, PROJECT):
            await manager.outside.create(NAMESPACE.resource, new_manifest(NAMESPACE, name))
        await cluster.outside.create(NAMESPACE.resource, new_manifest(NAMESPACE, "web"))
        for template in ROLE_TEMPLATES:
            await manager.outside.create(ROLE_TEMPLATE.resource, template)
        management = new_manifest(MANAGEMENT_CLUSTER, CLUSTER, annotations={CONNECTED_SINCE: timestamp(RESTORED)})
        await manager.outside.create(MANAGEMENT_CLUSTER.resource, management)
        await create_restored(manager.outside, CLUSTER, RESTORED)
        clusters = Clusters(manager.outside)

        async def client_of(_cluster: str) -> Client:
            return cluster.client

        rights = GrantedRights(manager.outside, clusters, client_of)
        running = asyncio.gather(clusters.run(), rights.run())
        try:
            await clusters.ready()
            await rights.ready()
            yield Site(manager.outside, cluster.outside, clusters, rights, cluster.wire)
        finally:
            rights.close()
            running.cancel()


async def nothing(_site: Site) -> None:
    pass


async def rights_of_today(site: Site) -> None:
    await site.grant(await site.create(CLUSTER_BINDING, "b", "cluster-member"), "cluster-member")
    project = await site.create(PROJECT_BINDING, "b", "project-member", PROJECT)
    await site.grant(project, "project-member", "web")


async def revoked(site: Site) -> None:
    await site.grant({"metadata": {"namespace": CLUSTER, "name": "revoked"}}, "cluster-owner")


async def revoked_in_a_project(site: Site) -> None:
    await site.grant({"metadata": {"namespace": PROJECT, "name": "b"}, "projectName": "x"}, "project-owner", "web")


async def reduced(site: Site) -> None:
    await site.grant(await site.create(CLUSTER_BINDING, "b", "cluster-member"), "cluster-owner")


async def another_subject(site: Site) -> None:
    binding = await site.create(CLUSTER_BINDING, "b", "cluster-member")
    await site.grant(binding, "cluster-member")
    (found,) = (await site.cluster.list(CLUSTER_ROLE_BINDING.resource, labels=roles.OWNED_BY)).items
    subjects = [{"apiGroup": RBAC, "kind": "User", "name": "mallory"}]
    await site.cluster.patch(CLUSTER_ROLE_BINDING.resource, found["metadata"]["name"], {"subjects": subjects})


async def earlier_rules(site: Site) -> None:
    await rights_of_today(site)
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    name = roles.template_role_name("cluster-member")
    await site.cluster.patch(CLUSTER_ROLE.resource, name, {"rules": rules})


async def template_is_gone(site: Site) -> None:
    await rights_of_today(site)
    await site.manager.delete(ROLE_TEMPLATE.resource, "cluster-member")


CASES: dict[Callable[[Site], Any], bool] = {
    nothing: True,
    rights_of_today: True,
    revoked: False,
    revoked_in_a_project: False,
    reduced: False,
    another_subject: False,
    earlier_rules: False,
    template_is_gone: False,
}


@pytest.mark.parametrize(("prepare", "expected"), CASES.items(), ids=[each.__name__ for each in CASES])
async def test_a_cluster_opens_if_it_has_the_rights_of_today(prepare: Callable[[Site], Any], expected: bool) -> None:
    async with restored_site() as site:
        await prepare(site)
        assert bool(await site.rights.compare(CLUSTER, BOB)) is not expected
        assert site.rights.are_known(CLUSTER, BOB) is expected


async def test_each_restore_is_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(granted_rights, "RETRY_SECONDS", 0.0)
    async with restored_site() as site:
        assert await site.rights.compare(CLUSTER, BOB) == ""
        await revoked(site)
        assert site.rights.are_known(CLUSTER, BOB), "nothing was revoked that the manager has granted since"
        for hours, phase, problem in ((1, "Restore", BEING_RESTORED), (2, "Finished", LEFTOVERS)):
            await set_restored(site.manager, CLUSTER, RESTORED + timedelta(hours=hours), phase)
            async with asyncio.timeout(10):
                while await site.rights.compare(CLUSTER, BOB) != problem:
                    await asyncio.sleep(0.01)
            assert not site.rights.are_known(CLUSTER, BOB)
        for each in (await site.cluster.list(CLUSTER_ROLE_BINDING.resource, labels=roles.OWNED_BY)).items:
            await site.cluster.delete(CLUSTER_ROLE_BINDING.resource, each["metadata"]["name"])
        assert await site.rights.compare(CLUSTER, BOB) == ""


async def test_a_request_of_an_owner_compares_the_rights_too() -> None:
    """Otherwise, each of its requests would check whether the user is an owner."""
    async with restored_site() as site:
        started = site.rights.begin(CLUSTER)
        assert not isinstance(started, str)
        assert await started == ""
        assert site.rights.are_known(CLUSTER, BOB)


async def test_requests_share_a_comparison_and_failures_keep_the_cluster_closed() -> None:
    async with restored_site() as site:
        asked: list[str] = []

        async def unreachable(cluster: str) -> Client:
            asked.append(cluster)
            await asyncio.sleep(0.05)
            raise ServiceUnavailable("its agent is not connected")

        site.rights = GrantedRights(site.manager, site.clusters, unreachable)
        problem = "its rights cannot be compared: its agent is not connected"
        assert await asyncio.gather(*(site.rights.compare(CLUSTER, BOB) for _ in range(5))) == [problem] * 5
        assert await site.rights.compare(CLUSTER, BOB) == NOT_YET, "another attempt is made later"
        assert asked == [CLUSTER]


async def test_objects_of_any_shape_keep_the_cluster_closed() -> None:
    async with restored_site() as site:

        def odd(_request: Request) -> Response:
            body = b'{"kind": "List", "items": [{"metadata": {"labels": 1}}]}'
            return Response(200, {"content-type": "application/json"}, body)

        site.wire.intercept = odd
        assert await site.rights.compare(CLUSTER, BOB) != ""


async def test_rights_that_are_revoked_without_an_agent_do_not_come_back_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The manager deletes them only when the agent has returned."""
    monkeypatch.setattr(granted_rights, "RETRY_SECONDS", 0.0)
    async with restored_site() as site:
        await revoked(site)
        binding = await site.create(CLUSTER_BINDING, "revoked", "cluster-owner")
        await site.report(RESTORED)
        assert await site.rights.compare(CLUSTER, BOB) == ""
        await site.report(None)
        assert await site.rights.compare(CLUSTER, BOB) == CONNECTING
        await site.manager.delete(CLUSTER_BINDING.resource, binding["metadata"]["name"], namespace=CLUSTER)
        await site.report(RESTORED + timedelta(hours=1))
        assert not site.rights.are_known(CLUSTER, BOB)
        assert await site.rights.compare(CLUSTER, BOB) == LEFTOVERS


async def test_an_agent_that_registers_during_a_comparison_opens_no_other_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(granted_rights, "RETRY_SECONDS", 0.0)
    async with restored_site() as site, environment() as impostor:
        await revoked(site)
        await site.report(RESTORED)
        resume, waits = asyncio.Event(), asyncio.Event()
        list_all = site.manager.list_all

        async def slow(*arguments: Any, **options: Any) -> Any:
            waits.set()
            await resume.wait()
            return await list_all(*arguments, **options)

        async def client_of(_cluster: str) -> Client:
            is_own = (site.clusters.get(CLUSTER) or {})["status"]["apiEndpoint"] == "https://a"
            return site.cluster if is_own else impostor.outside

        site.rights = GrantedRights(site.manager, site.clusters, client_of)
        monkeypatch.setattr(site.manager, "list_all", slow)
        comparison = asyncio.ensure_future(site.rights.compare(CLUSTER, BOB))
        await waits.wait()
        await site.report(RESTORED, "b")
        resume.set()
        assert await comparison == ""  # of the cluster of the other agent
        await site.report(RESTORED)
        assert not site.rights.are_known(CLUSTER, BOB)
        assert await site.rights.compare(CLUSTER, BOB) == LEFTOVERS


async def test_a_cluster_that_sends_many_objects_at_once_does_not_hold_the_event_loop() -> None:
    async with restored_site() as site:
        await rights_of_today(site)
        (found,) = (await site.cluster.list(CLUSTER_ROLE_BINDING.resource, labels=roles.OWNED_BY)).items
        done, turns = False, 0

        async def count() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        class Flood:
            async def list(self, resource: object, **_options: object) -> Page:
                return Page([found] * 2_000 if resource == CLUSTER_ROLE_BINDING.resource else [], "", "")

        counting = asyncio.ensure_future(count())
        comparison = await granted_rights._Comparison.of(site.manager)
        before = turns
        assert await comparison.is_equal(cast(Client, Flood()))
        assert turns - before >= 2_000 / granted_rights.YIELD_EVERY
        done = True
        await counting


# --- over the wire ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["embedded", "real"])
async def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayServer]:
    async with running_gateway(request.param, tmp_path_factory.mktemp("front")) as server:
        await install_kinds(server.client, CRDS)
        await create_namespace(server.client, "fleet-default")
        yield server


@dataclass
class Downstream:
    """The API server of a managed cluster, and the token of its agent."""

    client: Client
    address: str
    token: str

    async def create_former_rights(self, binding: str) -> None:
        """Those of bob as owner, by a binding of the manager that does not exist any more."""
        subject, labels = {"apiGroup": RBAC, "kind": "User", "name": "bob"}, {roles.OWNED_BY: binding}
        owner = roles.cluster_role_binding("crtb-former", "cluster-admin", subject, labels)
        await self.client.apply(CLUSTER_ROLE_BINDING.resource, owner)

    async def end_former_rights(self) -> None:
        await self.client.delete(CLUSTER_ROLE_BINDING.resource, "crtb-former")


@asynccontextmanager
async def downstream() -> AsyncIterator[Downstream]:
    server = await assemble(None, clock=lambda: datetime.now(UTC), entropy=os.urandom)
    client = Client(InProcess(server, ADMIN))
    front = HttpFront(server, clock=lambda: datetime.now(UTC), body_bytes=1 << 20)
    host, port = await front.listen("127.0.0.1", 0, serving_context(CA, HOST))
    try:
        for name in ("cattle-system", "default"):
            await create_namespace(client, name)
        token = await create_account_token(client, "cattle-system", "cattle")
        subject = {"kind": "ServiceAccount", "name": "cattle", "namespace": "cattle-system"}
        await client.apply(CLUSTER_ROLE_BINDING.resource, roles.cluster_role_binding("agent", "cluster-admin", subject))
        yield Downstream(client, f"{host}:{port}", token)
    finally:
        await front.stop(grace=0)
        await server.stop()


async def create_member(gateway: GatewayServer, cluster: str) -> Client:
    """A client of bob, who may read the management Cluster."""
    await gateway.client.create(USER.resource, new_manifest(USER, "bob", username="bob"))
    await gateway.client.apply(CLUSTER_ROLE.resource, roles.membership_role(cluster, owner=False))
    subject = {"apiGroup": RBAC, "kind": "User", "name": "bob"}
    role = roles.membership_role(cluster, owner=False)["metadata"]["name"]
    await gateway.client.apply(CLUSTER_ROLE_BINDING.resource, roles.cluster_role_binding("bob", role, subject))
    issued = await gateway.parts.identity.issuer.issue_ext(NewToken("bob", "bob", kind="kubeconfig", ttl_ms=3_600_000))
    return gateway.client_with_token(issued.bearer, f"/k8s/clusters/{cluster}")


async def note_connected(gateway: GatewayServer, cluster: str) -> None:
    """Write the condition as the controller does."""
    found = await gateway.client.get(MANAGEMENT_CLUSTER.resource, cluster)
    since = connected_since(found)
    status = {"type": CONNECTED, "status": "True" if since else "False"}
    status["lastTransitionTime"] = since or timestamp(datetime.now(UTC) + gateway.clock_offset)
    patch = {"status": {"conditions": [*(found["status"].get("conditions") or ()), status]}}
    await gateway.client.patch(MANAGEMENT_CLUSTER.resource, cluster, patch, subresource="status")


async def status_of(member: Client) -> int:
    try:
        await member.get(NAMESPACE.resource, "cattle-system")
    except StatusError as error:
        return error.code
    return 200


async def assert_opens_without_former_rights(api: Downstream, member: Client) -> None:
    """The cluster is closed until they are deleted. Then the member, who has no others, gets 403."""
    assert await status_of(member) == 503
    await api.end_former_rights()
    async with asyncio.timeout(30):
        while (status := await status_of(member)) == 503:
            await asyncio.sleep(0.1)
    assert status == 403


async def test_a_cluster_that_is_imported_again_opens_without_its_former_rights(gateway: GatewayServer) -> None:
    """It keeps the bindings of its members when it is removed; the manager deletes them some seconds later."""
    cluster, token = "c-m-imported", os.urandom(27).hex()
    await create_managed_cluster(gateway.client, cluster, Tokens(token, datetime.now(UTC) + timedelta(days=1)))
    harness, member = Harness(gateway, cluster, token), await create_member(gateway, cluster)
    async with asyncio.timeout(30):
        while gateway.parts.registration.cluster_of(token) is None:
            await asyncio.sleep(0.01)
    try:
        async with downstream() as api:
            await api.create_former_rights(f"c-m-before_{cluster}")
            await harness.register(pem(CA), api.token, api.address)
            await harness.until_connected(True)
            await assert_opens_without_former_rights(api, member)
    finally:
        for client in harness.clients:
            client.stop()


async def test_an_agent_in_between_does_not_open_a_restored_cluster(gateway: GatewayServer) -> None:
    """A former owner may still have the registration token. Until the agent returns after a restore, another agent can
    be connected in its place: no time since then says anything about the rights in the cluster."""
    cluster, token = "c-m-restored", os.urandom(27).hex()
    await create_managed_cluster(gateway.client, cluster, Tokens(token, datetime.now(UTC) + timedelta(days=1)))
    await create_restored(gateway.client, cluster, datetime.now(UTC) - timedelta(minutes=5))
    harness, parts = Harness(gateway, cluster, token), gateway.parts
    member = await create_member(gateway, cluster)
    async with asyncio.timeout(30):
        while parts.registration.cluster_of(token) is None or not parts.clusters._restores.keys():
            await asyncio.sleep(0.01)
    try:
        async with downstream() as api:
            await api.create_former_rights(f"{cluster}_revoked")
            agent = await harness.register(pem(CA), api.token, api.address)
            await harness.until_connected(True)
            await harness.disconnect(agent)
            await harness.until_connected(False)
            await note_connected(gateway, cluster)

            await harness.register(pem(CA), "of-mallory")
            await harness.until_connected(True)
            await note_connected(gateway, cluster)
            for seconds in (30, 61, 92):
                gateway.clock_offset = timedelta(seconds=seconds)
                try:
                    await harness.register(pem(CA), api.token, api.address)
                    break
                except TunnelError as error:
                    print(error)
            async with asyncio.timeout(30):
                while (await parts.clusters.target_of(cluster)).token != api.token:
                    await asyncio.sleep(0.01)
            await assert_opens_without_former_rights(api, member)
    finally:
        for client in harness.clients:
            client.stop()
