"""Which machines receive the location of their plan, and which requests are rejected."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
import yaml

from herder.api.capi.kinds import MACHINE, SECRET
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP, CUSTOM_MACHINE
from herder.api.rke.node.requests import ID as ID_FIELD
from herder.api.rke.node.requests import request_secret
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.wire import Request, Response, User
from tests.unit.gateway.nodes.node_gateway import (
    ID,
    IMPORTED_TOKEN,
    NAME,
    OTHER_TOKEN,
    SERVER,
    WORKSPACE,
    NodeGateway,
    running_node_gateway,
)

AGENT = "/v3/connect/agent"
MACHINE_ID = "a" * 63
UID = "kubernetes.io/service-account.uid"


@pytest.fixture
async def gateway() -> AsyncIterator[NodeGateway]:
    async with running_node_gateway() as created:
        yield created


def decode(response: Response) -> Object:
    assert response.status == 200, response.content()
    secret: Object = json.loads(response.content())
    return secret


async def custom(gateway: NodeGateway, token: str = "", **headers: str) -> Response:
    """Register a custom machine, and play the part of the core."""
    registration = asyncio.ensure_future(
        gateway.get(AGENT, token or gateway.registration_token, **({"id": MACHINE_ID} | headers))
    )
    name = names.custom_machine(headers.get("id", MACHINE_ID))

    async def try_adopt() -> Object:
        await gateway.adopt(name)
        return {}

    adopting = asyncio.ensure_future(gateway.eventually(try_adopt))
    try:
        return await registration
    finally:
        adopting.cancel()


# --- provisioned machines -------------------------------------------------------------------------------------------


async def test_a_machine_gets_the_name_of_its_plan_and_a_kubeconfig(gateway: NodeGateway) -> None:
    await gateway.create_machine("pool-1-abc")
    connection = decode(await gateway.get(AGENT, await gateway.bootstrap_token("pool-1-abc"), id=MACHINE_ID))
    assert (connection["namespace"], connection["secretName"]) == (WORKSPACE, "pool-1-abc-machine-plan")
    config = yaml.safe_load(connection["kubeConfig"])
    assert config["current-context"] == "agent"
    assert [config[part][0]["name"] for part in ("clusters", "users", "contexts")] == ["agent"] * 3
    cluster = config["clusters"][0]["cluster"]
    assert cluster["server"] == SERVER
    assert base64.b64decode(cluster["certificate-authority-data"]) == b"the certificates\n"
    token = await gateway.secret("pool-1-abc-machine-plan-token")
    assert config["users"][0]["user"]["token"] == base64.b64decode(token["data"]["token"]).decode()
    machine = await gateway.client.get(MACHINE.resource, "pool-1-abc", namespace=WORKSPACE)
    assert machine["metadata"]["labels"][names.MACHINE_ID] == MACHINE_ID


async def test_the_token_of_a_script_is_a_digest_of_the_account_token(gateway: NodeGateway) -> None:
    await gateway.create_machine("pool-1-abc")
    script_token = await gateway.bootstrap_token("pool-1-abc")
    account = await gateway.secret("pool-1-abc-machine-bootstrap-token")
    token = base64.b64decode(account["data"]["token"])
    assert script_token == base64.urlsafe_b64encode(hashlib.sha256(token).digest()).decode()


@pytest.mark.parametrize(("seconds", "status"), [(29, 200), (31, 401)])
async def test_a_used_token_expires_after_half_a_minute(gateway: NodeGateway, seconds: int, status: int) -> None:
    await gateway.create_machine("pool-1-abc")
    token = await gateway.bootstrap_token("pool-1-abc")
    assert (await gateway.get(AGENT, token, id=MACHINE_ID)).status == 200
    secret = await gateway.secret("pool-1-abc-machine-bootstrap-token")
    assert names.LAST_ACCESS in secret["metadata"]["annotations"]
    gateway.clock_offset = timedelta(seconds=seconds)
    response = await gateway.get(AGENT, token, id=MACHINE_ID)
    assert response.status == status
    if status == 401:
        assert b"has expired" in response.content()


async def test_repeated_use_does_not_extend_a_token(gateway: NodeGateway) -> None:
    await gateway.create_machine("pool-1-abc")
    token = await gateway.bootstrap_token("pool-1-abc")
    statuses = []
    for seconds in (0, 20, 40, 60):
        gateway.clock_offset = timedelta(seconds=seconds)
        statuses.append((await gateway.get(AGENT, token, id=MACHINE_ID)).status)
    assert statuses == [200, 200, 401, 401]


async def test_a_machine_cannot_take_the_id_of_another(gateway: NodeGateway) -> None:
    """A client with an ID and the token of the cluster gets the plan of the Machine with that ID."""
    for name in ("pool-1-abc", "pool-1-xyz"):
        await gateway.create_machine(name)
    assert (await gateway.get(AGENT, await gateway.bootstrap_token("pool-1-abc"), id=MACHINE_ID)).status == 200
    token = await gateway.bootstrap_token("pool-1-xyz")
    for claimed in (MACHINE_ID, "b" * 63, MACHINE_ID, "c" * 63):
        assert (await gateway.get(AGENT, token, id=claimed)).status == 200
    machines = [
        await gateway.client.get(MACHINE.resource, name, namespace=WORKSPACE) for name in ("pool-1-abc", "pool-1-xyz")
    ]
    assert [each["metadata"]["labels"][names.MACHINE_ID] for each in machines] == [MACHINE_ID, "b" * 63]


class RecordedConnection:
    """The connection of a request; records the users that its limits apply to."""

    def __init__(self) -> None:
        self.users: list[str] = []

    async def admit(self, user: User | None, *, long_running: bool) -> None:
        assert long_running
        self.users.append(user.name if user else "")

    async def receive(self, limit: int | None) -> bytes:
        return b""

    def detach(self) -> Callable[[], None]:
        return lambda: None


@pytest.mark.parametrize("path", [AGENT, "/v3/connect/cluster-info", "/v3/connect/config-yaml"])
async def test_connection_limits_apply_per_token_not_per_machine_id(gateway: NodeGateway, path: str) -> None:
    """Otherwise the holder of one token could use all connections with different IDs."""
    connection = RecordedConnection()
    await gateway.create_machine("pool-1-abc")
    for token in (gateway.registration_token, await gateway.bootstrap_token("pool-1-abc")):
        for machine_id in ("a" * 63, "b" * 63, "c" * 63):
            headers = {"authorization": f"Bearer {token}", "x-cattle-id": machine_id}
            await gateway.nodes.handle(Request("GET", path, headers=headers, incoming=connection))
    assert len(connection.users) == 6
    assert len(set(connection.users)) == 2


async def test_an_unused_token_expires_after_half_an_hour(gateway: NodeGateway) -> None:
    await gateway.create_machine("pool-1-abc")
    token = await gateway.bootstrap_token("pool-1-abc")
    gateway.clock_offset = timedelta(minutes=31)
    assert (await gateway.get(AGENT, token, id=MACHINE_ID)).status == 401


async def test_an_account_with_forged_labels_is_rejected(gateway: NodeGateway) -> None:
    """A user who may create accounts in the namespace must not get the plan of a machine by labels."""
    await gateway.create_machine("pool-1-abc")
    await gateway.bootstrap_token("pool-1-abc")
    labels = {names.ACCOUNT_ROLE: "bootstrap", names.MACHINE_NAME: "pool-1-abc"}
    await gateway.create(SERVICE_ACCOUNT, "forged", WORKSPACE, labels=labels)
    meta = {"name": "forged-token", "namespace": WORKSPACE, "labels": labels}
    meta |= {"annotations": {"kubernetes.io/service-account.name": "forged"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "kubernetes.io/service-account-token"}
    await gateway.client.create(SECRET.resource, secret, namespace=WORKSPACE)

    async def filled_secret() -> Object:
        stored = await gateway.secret("forged-token")
        if "token" not in (stored.get("data") or {}):
            raise NotFound("not yet")
        return stored

    token = base64.b64decode((await gateway.eventually(filled_secret))["data"]["token"])
    script_token = base64.urlsafe_b64encode(hashlib.sha256(token).digest()).decode()
    assert (await gateway.get(AGENT, script_token, id=MACHINE_ID)).status == 401


async def test_a_token_that_the_server_did_not_issue_is_rejected(gateway: NodeGateway) -> None:
    """A user who may create Secrets names the account of another machine, and provides a token."""
    await gateway.create_machine("pool-1-abc")
    genuine = await gateway.bootstrap_token("pool-1-abc")
    forged = await forge(gateway, "pool-1-abc-machine-bootstrap", names.ACCOUNT_FOR_BOOTSTRAP, b"mine")
    assert (await gateway.get(AGENT, forged, id=MACHINE_ID)).status == 401
    assert (await gateway.get(AGENT, genuine, id=MACHINE_ID)).status == 200


async def test_a_genuine_token_in_a_foreign_secret_is_rejected(gateway: NodeGateway) -> None:
    await gateway.create_machine("pool-1-abc")
    await gateway.bootstrap_token("pool-1-abc")
    script_token = await forge(gateway, "pool-1-abc-machine-bootstrap", names.ACCOUNT_FOR_BOOTSTRAP)
    assert (await gateway.get(AGENT, script_token, id=MACHINE_ID)).status == 401


async def test_a_machine_never_receives_a_forged_token(gateway: NodeGateway) -> None:
    await gateway.create_machine("pool-1-abc")
    token = await gateway.bootstrap_token("pool-1-abc")
    await gateway.eventually(lambda: filled_secret(gateway, "pool-1-abc-machine-plan-token"))
    await forge(gateway, "pool-1-abc-machine-plan", names.ACCOUNT_FOR_PLAN, b"mine", "a-forged")
    config = yaml.safe_load(decode(await gateway.get(AGENT, token, id=MACHINE_ID))["kubeConfig"])
    assert config["users"][0]["user"]["token"] != "mine"


async def filled_secret(gateway: NodeGateway, name: str) -> Object:
    secret = await gateway.secret(name)
    if "token" not in (secret.get("data") or {}) or UID not in secret["metadata"]["annotations"]:
        raise NotFound("not yet")
    return secret


async def forge(gateway: NodeGateway, account: str, role: str, token: bytes = b"", name: str = "forged-token") -> str:
    """Create a Secret with all the marks of the manager, and return the value that a machine would use as its token."""
    labels = {names.ACCOUNT_ROLE: role, names.MACHINE_NAME: "pool-1-abc", names.ACCOUNT_NAME: account}
    meta = {"name": name, "namespace": WORKSPACE, "labels": labels}
    meta |= {"annotations": {"kubernetes.io/service-account.name": account, names.BOOTSTRAP_TOKEN: "true"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "kubernetes.io/service-account-token"}
    secret |= {"data": {"token": base64.b64encode(token).decode()}} if token else {}
    await gateway.client.create(SECRET.resource, secret, namespace=WORKSPACE)
    stored = await gateway.eventually(lambda: filled_secret(gateway, name))
    token_bytes = base64.b64decode(stored["data"]["token"])
    return base64.urlsafe_b64encode(hashlib.sha256(token_bytes).digest()).decode()


# --- custom machines ------------------------------------------------------------------------------------------------


async def test_a_custom_machine_is_registered(gateway: NodeGateway) -> None:
    response = await custom(
        gateway,
        role_worker="true",
        role_etcd="true",
        role_control_plane="false",
        node_name="sheep-1",
        address="10.0.0.7,2001:DB8::1",
        internal_address="192.168.0.7",
        labels="cattle.io/os=linux,colour=black",
        taints="wool=thick:NoSchedule,shy:NoExecute",
    )
    name = names.custom_machine(MACHINE_ID)
    assert decode(response)["secretName"] == f"{name}-machine-plan"
    machine = await gateway.client.get(MACHINE.resource, name, namespace=WORKSPACE)
    labels = machine["metadata"]["labels"]
    assert labels == {
        "cattle.io/os": "linux",
        "colour": "black",
        names.WORKER_ROLE: "true",
        names.ETCD_ROLE: "true",
        names.NODE_NAME: "sheep-1",
        names.MACHINE_ID: MACHINE_ID,
        names.CLUSTER_NAME: NAME,
        "cluster.x-k8s.io/cluster-name": NAME,
    }
    spec = machine["spec"]
    references = {BOOTSTRAP: spec["bootstrap"]["configRef"], CUSTOM_MACHINE: spec["infrastructureRef"]}
    for kind, reference in references.items():
        assert reference == {"apiGroup": kind.group, "kind": kind.kind, "name": name}
        assert (await gateway.client.get(kind.resource, name, namespace=WORKSPACE))["metadata"]["labels"] == labels
    plan = await gateway.secret(f"{name}-machine-plan")
    annotations = plan["metadata"]["annotations"]
    assert (annotations[names.ADDRESS], annotations[names.INTERNAL_ADDRESS]) == ("10.0.0.7,2001:db8::1", "192.168.0.7")
    assert annotations[names.LABELS] == '{"cattle.io/os":"linux","colour":"black"}'
    assert json.loads(annotations[names.TAINTS]) == [
        {"key": "wool", "value": "thick", "effect": "NoSchedule"},
        {"key": "shy", "effect": "NoExecute"},
    ]
    assert plan["metadata"]["labels"][names.ETCD_ROLE] == "true"
    requests = await gateway.client.list_all(SECRET.resource, namespace=ID, labels=names.REQUEST_FOR)
    assert requests.items == [], "the request is deleted when it is answered"


async def test_a_machine_that_registers_again_is_the_same_machine(gateway: NodeGateway) -> None:
    first = decode(await custom(gateway, role_worker="true"))
    again = decode(
        await gateway.get(AGENT, gateway.registration_token, id=MACHINE_ID, role_worker="true", role_etcd="true")
    )
    assert (first["secretName"], first["namespace"]) == (again["secretName"], again["namespace"])
    assert len((await gateway.client.list_all(MACHINE.resource, namespace=WORKSPACE)).items) == 1


async def test_a_provisioned_machine_may_register_again_with_the_cluster_token(gateway: NodeGateway) -> None:
    await gateway.create_machine("pool-1-abc")
    assert (await gateway.get(AGENT, await gateway.bootstrap_token("pool-1-abc"), id=MACHINE_ID)).status == 200
    again = decode(await gateway.get(AGENT, gateway.registration_token, id=MACHINE_ID, role_worker="true"))
    assert again["secretName"] == "pool-1-abc-machine-plan"


async def test_a_machine_of_another_cluster_is_rejected(gateway: NodeGateway) -> None:
    await custom(gateway, role_worker="true")
    response = await gateway.get(AGENT, OTHER_TOKEN, id=MACHINE_ID, role_worker="true")
    message = b"the machine belongs to another cluster: uninstall its agent first"
    assert (response.status, response.content()) == (400, message)


async def test_an_edited_request_does_not_get_the_plan_of_another_machine(gateway: NodeGateway) -> None:
    """Editors of a cluster's namespace can read its registration token, and edit the requests of its machines."""
    victim = decode(await custom(gateway, role_etcd="true", role_control_plane="true"))
    mallory, labels = (
        "e" * 63,
        {names.MACHINE_NAMESPACE: WORKSPACE, names.MACHINE_NAME: names.custom_machine(MACHINE_ID)},
    )
    request = request_secret("c-m-pasture2", {ID_FIELD: [mallory]})
    request["metadata"]["labels"] |= labels  # before the machine sends it, so that no answer comes first
    await gateway.client.create(SECRET.resource, request, namespace="c-m-pasture2")
    response = await gateway.get(AGENT, OTHER_TOKEN, id=mallory, role_worker="true")
    assert response.status == 400, response.content()
    assert victim["secretName"].encode() not in response.content()


async def test_a_token_of_an_earlier_cluster_of_the_name_is_rejected(gateway: NodeGateway) -> None:
    await custom(gateway, role_worker="true")
    status = {"status": {"clusterName": "c-m-another2"}}
    await gateway.client.patch(PROVISIONING_CLUSTER.resource, NAME, status, namespace=WORKSPACE, subresource="status")
    for path, known in (("agent", 400), ("cluster-info", 401), ("config-yaml", 401)):
        response = await gateway.get(
            f"/v3/connect/{path}", gateway.registration_token, id=MACHINE_ID, role_worker="true", field="x"
        )
        assert response.status == known, (path, response.content())


async def test_machines_cannot_register_for_an_imported_cluster(gateway: NodeGateway) -> None:
    response = await gateway.get(AGENT, IMPORTED_TOKEN, id=MACHINE_ID, role_worker="true")
    message = b"the cluster is imported: its nodes are not managed by Herder"
    assert (response.status, response.content()) == (400, message)


# --- rejections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({"id": ""}, 401, "header X-Cattle-Id: missing"),
        ({"id": "not a label"}, 400, 'CATTLE_ID: "not a label"'),
        ({}, 400, "no role given; pass --etcd, --controlplane, --worker or --all-roles"),
        ({"role_worker": "false"}, 400, "no role given"),
        ({"role_worker": "true", "labels": "no-value"}, 400, '--label: "no-value": must be key=value'),
        ({"role_worker": "true", "labels": "a b=c"}, 400, '--label: "a b"'),
        ({"role_worker": "true", "labels": "a=b c"}, 400, '--label a: "b c"'),
        ({"role_worker": "true", "labels": "rke.cattle.io/init-node=true"}, 400, "reserved for the manager"),
        ({"role_worker": "true", "labels": "cluster.x-k8s.io/cluster-name=x"}, 400, "reserved for the manager"),
        ({"role_worker": "true", "taints": "a=b"}, 400, '--taint: "a=b": must be key=value:effect'),
        ({"role_worker": "true", "taints": "a=b:Never"}, 400, "one of NoSchedule, PreferNoSchedule, NoExecute"),
        ({"role_worker": "true", "address": "not/an/address"}, 400, '--address: "not/an/address"'),
        ({"role_worker": "true", "node_name": "Not_A_Name"}, 400, '--node-name: "Not_A_Name"'),
        ({"role_worker": "true", "labels": "a=" + "b" * 70000}, 400, "must not exceed 64 KiB"),
    ],
)
async def test_invalid_values_are_rejected_with_the_name_of_their_flag(
    gateway: NodeGateway, headers: dict[str, str], status: int, text: str
) -> None:
    response = await gateway.get(AGENT, gateway.registration_token, **({"id": MACHINE_ID} | headers))
    assert (response.status, text in response.content().decode()) == (status, True), response.content()
    assert (await gateway.client.list_all(MACHINE.resource, namespace=WORKSPACE)).items == []


@pytest.mark.parametrize("token", ["", "wrong", "z" * 54, "x" * 5000])
async def test_an_unknown_token_is_rejected(gateway: NodeGateway, token: str) -> None:
    assert (await gateway.get(AGENT, token, id=MACHINE_ID, role_worker="true")).status == 401


async def test_a_machine_that_waits_too_long_is_asked_to_retry() -> None:
    idle = Controller(name="idle", kind=MACHINE, reconcile=lambda _view: pytest.fail("the controller must not run"))
    async with running_node_gateway(idle, wait=0.05) as gateway:
        response = await gateway.get(AGENT, gateway.registration_token, id=MACHINE_ID, role_worker="true")
        assert (response.status, response.headers["retry-after"]) == (503, "5")
        requests = await gateway.client.list_all(SECRET.resource, namespace=ID, labels=names.REQUEST_FOR)
        assert requests.items == [], "the request is deleted after the timeout"


# --- other paths ----------------------------------------------------------------------------------------------------


async def test_cluster_info_returns_the_kubernetes_version(gateway: NodeGateway) -> None:
    await gateway.create_machine("pool-1-abc")
    token = await gateway.bootstrap_token("pool-1-abc")
    response = await gateway.get("/v3/connect/cluster-info", token, id=MACHINE_ID, field="kubernetesversion, name")
    assert decode(response) == {"kubernetesversion": "v1.35.0+k3s1"}
    assert (await gateway.get("/v3/connect/cluster-info", token, id=MACHINE_ID)).status == 500


async def test_config_yaml_returns_the_configuration_in_the_plan(gateway: NodeGateway) -> None:
    await gateway.create_machine("pool-1-abc")
    token = await gateway.bootstrap_token("pool-1-abc")
    path = "/v3/connect/config-yaml"
    assert (await gateway.get(path, token, id=MACHINE_ID)).status == 503
    content = base64.b64encode(b'{"node-label":["a=b"]}').decode()
    files = [{"path": "/etc/rancher/k3s/config.yaml.d/50-rancher.yaml", "content": content}]
    plan = base64.b64encode(json.dumps({"files": files}).encode()).decode()
    await gateway.client.patch(
        SECRET.resource, "pool-1-abc-machine-plan", {"data": {"plan": plan}}, namespace=WORKSPACE
    )
    assert decode(await gateway.get(path, token, id=MACHINE_ID)) == {"node-label": ["a=b"]}
    by_cluster = await gateway.get(path, gateway.registration_token, id="b" * 63)
    assert by_cluster.status == 401, "an unknown machine"


async def test_public_paths_need_no_token(gateway: NodeGateway) -> None:
    assert (await gateway.get("/healthz")).content() == b"ok"
    assert (await gateway.get("/system-agent-install.sh")).content().startswith(b"#!/usr/bin/env sh\n")
    assert b"Invoke-AgentInstaller" in (await gateway.get("/wins-agent-install.ps1")).content()
    assert (await gateway.get("/assets/herder-agent.pyz")).content() == b"an agent"
    assert (await gateway.get("/assets/system-agent-uninstall.sh")).content().startswith(b"#!/bin/sh\n")
    assert b"CATTLE_TOKEN=" not in (await gateway.get("/system-agent-install.sh")).content().split(b"\n\n")[0]


@pytest.mark.parametrize("name", ["rancher-system-agent-arm64", "../nodes.py", "..%2fnodes.py", "a/b", "", ".hidden"])
async def test_missing_assets_are_not_found(gateway: NodeGateway, name: str) -> None:
    assert (await gateway.get(f"/assets/{name}")).status == 404


async def test_assets_are_served_from_the_configured_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("assets")
    (directory / "rancher-system-agent-amd64").write_bytes(b"x" * 600_000)
    async with running_node_gateway(**{"system-agent-assets": str(directory)}) as gateway:
        response = await gateway.get("/assets/rancher-system-agent-amd64")
        assert response.stream is not None
        assert b"".join([piece async for piece in response.stream]) == b"x" * 600_000


async def test_other_paths_are_not_handled(gateway: NodeGateway) -> None:
    assert await gateway.nodes.handle(Request("GET", "/api/v1/nodes")) is None
    assert await gateway.nodes.handle(Request("POST", AGENT)) is None
