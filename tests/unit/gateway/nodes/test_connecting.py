"""Who is told where which plan is, and who is not."""

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
from tests.unit.gateway.nodes.site import ID, IMPORTED_TOKEN, NAME, OTHER_TOKEN, SERVER, WORKSPACE, Site, site

AGENT = "/v3/connect/agent"
OWN = "a" * 63
UID = "kubernetes.io/service-account.uid"


@pytest.fixture
async def here() -> AsyncIterator[Site]:
    async with site() as made:
        yield made


def read(answer: Response) -> Object:
    assert answer.status == 200, answer.content()
    found: Object = json.loads(answer.content())
    return found


async def custom(here: Site, token: str = "", **headers: str) -> Response:
    """Registers a machine that somebody else made; the core does its part."""
    asking = asyncio.ensure_future(here.ask(AGENT, token or here.registration_token, **({"id": OWN} | headers)))
    name = names.custom_machine(headers.get("id", OWN))

    async def adopted() -> Object:
        await here.adopt(name)
        return {}

    adopting = asyncio.ensure_future(here.eventually(adopted))
    try:
        return await asking
    finally:
        adopting.cancel()


# --- machines that were made here -------------------------------------------------------------------------------------


async def test_a_machine_is_told_where_its_plan_is_and_how_it_may_read_it(here: Site) -> None:
    await here.machine("pool-1-abc")
    connection = read(await here.ask(AGENT, await here.token_of("pool-1-abc"), id=OWN))
    assert (connection["namespace"], connection["secretName"]) == (WORKSPACE, "pool-1-abc-machine-plan")
    config = yaml.safe_load(connection["kubeConfig"])
    assert config["current-context"] == "agent"
    assert [config[part][0]["name"] for part in ("clusters", "users", "contexts")] == ["agent"] * 3
    cluster = config["clusters"][0]["cluster"]
    assert cluster["server"] == SERVER
    assert base64.b64decode(cluster["certificate-authority-data"]) == b"the certificates\n"
    token = await here.secret("pool-1-abc-machine-plan-token")
    assert config["users"][0]["user"]["token"] == base64.b64decode(token["data"]["token"]).decode()
    machine = await here.client.get(MACHINE.resource, "pool-1-abc", namespace=WORKSPACE)
    assert machine["metadata"]["labels"][names.MACHINE_ID] == OWN


async def test_the_token_of_a_script_is_a_digest_of_an_accounts_token(here: Site) -> None:
    await here.machine("pool-1-abc")
    shown = await here.token_of("pool-1-abc")
    account = await here.secret("pool-1-abc-machine-bootstrap-token")
    token = base64.b64decode(account["data"]["token"])
    assert shown == base64.urlsafe_b64encode(hashlib.sha256(token).digest()).decode()


@pytest.mark.parametrize(("seconds", "answer"), [(29, 200), (31, 401)])
async def test_after_its_use_the_token_counts_for_half_a_minute(here: Site, seconds: int, answer: int) -> None:
    await here.machine("pool-1-abc")
    token = await here.token_of("pool-1-abc")
    assert (await here.ask(AGENT, token, id=OWN)).status == 200
    secret = await here.secret("pool-1-abc-machine-bootstrap-token")
    assert names.LAST_ACCESS in secret["metadata"]["annotations"]
    here.later = timedelta(seconds=seconds)
    told = await here.ask(AGENT, token, id=OWN)
    assert told.status == answer
    if answer == 401:
        assert b"has expired" in told.content()


async def test_a_token_that_is_used_again_and_again_counts_no_longer_for_that(here: Site) -> None:
    await here.machine("pool-1-abc")
    token = await here.token_of("pool-1-abc")
    answers = []
    for seconds in (0, 20, 40, 60):
        here.later = timedelta(seconds=seconds)
        answers.append((await here.ask(AGENT, token, id=OWN)).status)
    assert answers == [200, 200, 401, 401]


async def test_a_machine_takes_no_other_machines_id(here: Site) -> None:
    """Who comes with an ID and the token of the cluster is handed the plan of the Machine with that ID."""
    for name in ("pool-1-abc", "pool-1-xyz"):
        await here.machine(name)
    assert (await here.ask(AGENT, await here.token_of("pool-1-abc"), id=OWN)).status == 200
    token = await here.token_of("pool-1-xyz")
    for claimed in (OWN, "b" * 63, OWN, "c" * 63):
        assert (await here.ask(AGENT, token, id=claimed)).status == 200
    machines = [
        await here.client.get(MACHINE.resource, name, namespace=WORKSPACE) for name in ("pool-1-abc", "pool-1-xyz")
    ]
    assert [each["metadata"]["labels"][names.MACHINE_ID] for each in machines] == [OWN, "b" * 63]


class Counted:
    """The connection of a request: whom it is counted for."""

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
async def test_machines_count_by_their_token_whatever_they_call_themselves(here: Site, path: str) -> None:
    """Whoever has a token would otherwise take all connections, by as many IDs."""
    counted = Counted()
    await here.machine("pool-1-abc")
    for token in (here.registration_token, await here.token_of("pool-1-abc")):
        for own in ("a" * 63, "b" * 63, "c" * 63):
            headers = {"authorization": f"Bearer {token}", "x-cattle-id": own}
            await here.nodes.handle(Request("GET", path, headers=headers, incoming=counted))
    assert len(counted.users) == 6
    assert len(set(counted.users)) == 2


async def test_a_token_that_was_never_used_counts_for_half_an_hour(here: Site) -> None:
    await here.machine("pool-1-abc")
    token = await here.token_of("pool-1-abc")
    here.later = timedelta(minutes=31)
    assert (await here.ask(AGENT, token, id=OWN)).status == 401


async def test_an_account_that_only_says_it_is_a_machines_opens_nothing(here: Site) -> None:
    """Who may make accounts in the namespace gets no other machine's plan by labelling one."""
    await here.machine("pool-1-abc")
    await here.token_of("pool-1-abc")
    labels = {names.ACCOUNT_ROLE: "bootstrap", names.MACHINE_NAME: "pool-1-abc"}
    await here.make(SERVICE_ACCOUNT, "forged", WORKSPACE, labels=labels)
    meta = {"name": "forged-token", "namespace": WORKSPACE, "labels": labels}
    meta |= {"annotations": {"kubernetes.io/service-account.name": "forged"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "kubernetes.io/service-account-token"}
    await here.client.create(SECRET.resource, secret, namespace=WORKSPACE)

    async def filled() -> Object:
        found = await here.secret("forged-token")
        if "token" not in (found.get("data") or {}):
            raise NotFound("not yet")
        return found

    token = base64.b64decode((await here.eventually(filled))["data"]["token"])
    shown = base64.urlsafe_b64encode(hashlib.sha256(token).digest()).decode()
    assert (await here.ask(AGENT, shown, id=OWN)).status == 401


async def test_a_token_that_the_server_did_not_issue_opens_nothing(here: Site) -> None:
    """Whoever may create Secrets names the account of another machine, and brings a token of their own."""
    await here.machine("pool-1-abc")
    genuine = await here.token_of("pool-1-abc")
    forged = await forge(here, "pool-1-abc-machine-bootstrap", names.ACCOUNT_FOR_BOOTSTRAP, b"mine")
    assert (await here.ask(AGENT, forged, id=OWN)).status == 401
    assert (await here.ask(AGENT, genuine, id=OWN)).status == 200


async def test_a_genuine_token_in_a_secret_of_others_opens_nothing(here: Site) -> None:
    await here.machine("pool-1-abc")
    await here.token_of("pool-1-abc")
    shown = await forge(here, "pool-1-abc-machine-bootstrap", names.ACCOUNT_FOR_BOOTSTRAP)
    assert (await here.ask(AGENT, shown, id=OWN)).status == 401


async def test_a_machine_is_handed_no_token_that_the_server_did_not_issue(here: Site) -> None:
    await here.machine("pool-1-abc")
    token = await here.token_of("pool-1-abc")
    await here.eventually(lambda: filled(here, "pool-1-abc-machine-plan-token"))
    await forge(here, "pool-1-abc-machine-plan", names.ACCOUNT_FOR_PLAN, b"mine", "a-forged")
    config = yaml.safe_load(read(await here.ask(AGENT, token, id=OWN))["kubeConfig"])
    assert config["users"][0]["user"]["token"] != "mine"


async def filled(here: Site, name: str) -> Object:
    found = await here.secret(name)
    if "token" not in (found.get("data") or {}) or UID not in found["metadata"]["annotations"]:
        raise NotFound("not yet")
    return found


async def forge(here: Site, account: str, role: str, token: bytes = b"", name: str = "forged-token") -> str:
    """A Secret that says all that those of the manager say; what a machine would show of its token."""
    labels = {names.ACCOUNT_ROLE: role, names.MACHINE_NAME: "pool-1-abc", names.ACCOUNT_NAME: account}
    meta = {"name": name, "namespace": WORKSPACE, "labels": labels}
    meta |= {"annotations": {"kubernetes.io/service-account.name": account, names.BOOTSTRAP_TOKEN: "true"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "kubernetes.io/service-account-token"}
    secret |= {"data": {"token": base64.b64encode(token).decode()}} if token else {}
    await here.client.create(SECRET.resource, secret, namespace=WORKSPACE)
    found = await here.eventually(lambda: filled(here, name))
    held = base64.b64decode(found["data"]["token"])
    return base64.urlsafe_b64encode(hashlib.sha256(held).digest()).decode()


# --- machines that others made ----------------------------------------------------------------------------------------


async def test_a_machine_that_somebody_else_made_is_taken_in(here: Site) -> None:
    answer = await custom(
        here,
        role_worker="true",
        role_etcd="true",
        role_control_plane="false",
        node_name="sheep-1",
        address="10.0.0.7,2001:DB8::1",
        internal_address="192.168.0.7",
        labels="cattle.io/os=linux,colour=black",
        taints="wool=thick:NoSchedule,shy:NoExecute",
    )
    name = names.custom_machine(OWN)
    assert read(answer)["secretName"] == f"{name}-machine-plan"
    machine = await here.client.get(MACHINE.resource, name, namespace=WORKSPACE)
    labels = machine["metadata"]["labels"]
    assert labels == {
        "cattle.io/os": "linux",
        "colour": "black",
        names.WORKER_ROLE: "true",
        names.ETCD_ROLE: "true",
        names.NODE_NAME: "sheep-1",
        names.MACHINE_ID: OWN,
        names.CLUSTER_NAME: NAME,
        "cluster.x-k8s.io/cluster-name": NAME,
    }
    spec = machine["spec"]
    references = {BOOTSTRAP: spec["bootstrap"]["configRef"], CUSTOM_MACHINE: spec["infrastructureRef"]}
    for kind, reference in references.items():
        assert reference == {"apiGroup": kind.group, "kind": kind.kind, "name": name}
        assert (await here.client.get(kind.resource, name, namespace=WORKSPACE))["metadata"]["labels"] == labels
    plan = await here.secret(f"{name}-machine-plan")
    told = plan["metadata"]["annotations"]
    assert (told[names.ADDRESS], told[names.INTERNAL_ADDRESS]) == ("10.0.0.7,2001:db8::1", "192.168.0.7")
    assert told[names.LABELS] == '{"cattle.io/os":"linux","colour":"black"}'
    assert json.loads(told[names.TAINTS]) == [
        {"key": "wool", "value": "thick", "effect": "NoSchedule"},
        {"key": "shy", "effect": "NoExecute"},
    ]
    assert plan["metadata"]["labels"][names.ETCD_ROLE] == "true"
    requests = await here.client.list_all(SECRET.resource, namespace=ID, labels=names.REQUEST_FOR)
    assert requests.items == [], "the request is answered and gone"


async def test_a_machine_that_comes_back_is_the_same_machine(here: Site) -> None:
    first = read(await custom(here, role_worker="true"))
    again = read(await here.ask(AGENT, here.registration_token, id=OWN, role_worker="true", role_etcd="true"))
    assert (first["secretName"], first["namespace"]) == (again["secretName"], again["namespace"])
    assert len((await here.client.list_all(MACHINE.resource, namespace=WORKSPACE)).items) == 1


async def test_a_machine_that_was_made_here_may_come_back_with_the_clusters_token(here: Site) -> None:
    await here.machine("pool-1-abc")
    assert (await here.ask(AGENT, await here.token_of("pool-1-abc"), id=OWN)).status == 200
    again = read(await here.ask(AGENT, here.registration_token, id=OWN, role_worker="true"))
    assert again["secretName"] == "pool-1-abc-machine-plan"


async def test_no_cluster_takes_a_machine_from_another(here: Site) -> None:
    await custom(here, role_worker="true")
    answer = await here.ask(AGENT, OTHER_TOKEN, id=OWN, role_worker="true")
    told = b"the machine belongs to another cluster: uninstall its agent first"
    assert (answer.status, answer.content()) == (400, told)


async def test_an_edited_request_is_handed_the_plan_of_no_other_machine(here: Site) -> None:
    """Editors of a cluster's own namespace read its registration token, and edit the requests of its machines."""
    victim = read(await custom(here, role_etcd="true", role_control_plane="true"))
    mallory, labels = "e" * 63, {names.MACHINE_NAMESPACE: WORKSPACE, names.MACHINE_NAME: names.custom_machine(OWN)}
    request = request_secret("c-m-pasture2", {ID_FIELD: [mallory]})
    request["metadata"]["labels"] |= labels  # before the machine asks, so that no answer comes first
    await here.client.create(SECRET.resource, request, namespace="c-m-pasture2")
    answer = await here.ask(AGENT, OTHER_TOKEN, id=mallory, role_worker="true")
    assert answer.status == 400, answer.content()
    assert victim["secretName"].encode() not in answer.content()


async def test_a_token_of_an_earlier_cluster_of_the_same_name_opens_nothing(here: Site) -> None:
    await custom(here, role_worker="true")
    status = {"status": {"clusterName": "c-m-another2"}}
    await here.client.patch(PROVISIONING_CLUSTER.resource, NAME, status, namespace=WORKSPACE, subresource="status")
    for path, known in (("agent", 400), ("cluster-info", 401), ("config-yaml", 401)):
        answer = await here.ask(f"/v3/connect/{path}", here.registration_token, id=OWN, role_worker="true", field="x")
        assert answer.status == known, (path, answer.content())


async def test_nodes_of_an_imported_cluster_are_not_ours(here: Site) -> None:
    answer = await here.ask(AGENT, IMPORTED_TOKEN, id=OWN, role_worker="true")
    told = b"the cluster is imported: its nodes are not managed by Herder"
    assert (answer.status, answer.content()) == (400, told)


# --- refusals ---------------------------------------------------------------------------------------------------------


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
async def test_what_cannot_be_used_is_refused_by_its_flag(
    here: Site, headers: dict[str, str], status: int, text: str
) -> None:
    answer = await here.ask(AGENT, here.registration_token, **({"id": OWN} | headers))
    assert (answer.status, text in answer.content().decode()) == (status, True), answer.content()
    assert (await here.client.list_all(MACHINE.resource, namespace=WORKSPACE)).items == []


@pytest.mark.parametrize("token", ["", "wrong", "z" * 54, "x" * 5000])
async def test_a_token_that_is_not_known_opens_nothing(here: Site, token: str) -> None:
    assert (await here.ask(AGENT, token, id=OWN, role_worker="true")).status == 401


async def test_who_has_to_wait_too_long_is_told_to_come_again() -> None:
    idle = Controller(name="idle", kind=MACHINE, reconcile=lambda _view: pytest.fail("nothing asks it"))
    async with site(idle, wait=0.05) as here:
        answer = await here.ask(AGENT, here.registration_token, id=OWN, role_worker="true")
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        requests = await here.client.list_all(SECRET.resource, namespace=ID, labels=names.REQUEST_FOR)
        assert requests.items == [], "who does not wait any longer has no request"


# --- the other paths --------------------------------------------------------------------------------------------------


async def test_the_version_of_its_cluster(here: Site) -> None:
    await here.machine("pool-1-abc")
    token = await here.token_of("pool-1-abc")
    answer = await here.ask("/v3/connect/cluster-info", token, id=OWN, field="kubernetesversion, name")
    assert read(answer) == {"kubernetesversion": "v1.35.0+k3s1"}
    assert (await here.ask("/v3/connect/cluster-info", token, id=OWN)).status == 500


async def test_the_configuration_of_its_plan(here: Site) -> None:
    await here.machine("pool-1-abc")
    token = await here.token_of("pool-1-abc")
    path = "/v3/connect/config-yaml"
    assert (await here.ask(path, token, id=OWN)).status == 503
    content = base64.b64encode(b'{"node-label":["a=b"]}').decode()
    files = [{"path": "/etc/rancher/k3s/config.yaml.d/50-rancher.yaml", "content": content}]
    plan = base64.b64encode(json.dumps({"files": files}).encode()).decode()
    await here.client.patch(SECRET.resource, "pool-1-abc-machine-plan", {"data": {"plan": plan}}, namespace=WORKSPACE)
    assert read(await here.ask(path, token, id=OWN)) == {"node-label": ["a=b"]}
    by_cluster = await here.ask(path, here.registration_token, id="b" * 63)
    assert by_cluster.status == 401, "a machine that is not known there"


async def test_what_anybody_may_have(here: Site) -> None:
    assert (await here.ask("/healthz")).content() == b"ok"
    assert (await here.ask("/system-agent-install.sh")).content().startswith(b"#!/usr/bin/env sh\n")
    assert b"Invoke-AgentInstaller" in (await here.ask("/wins-agent-install.ps1")).content()
    assert (await here.ask("/assets/herder-agent.pyz")).content() == b"an agent"
    assert (await here.ask("/assets/system-agent-uninstall.sh")).content().startswith(b"#!/bin/sh\n")
    assert b"CATTLE_TOKEN=" not in (await here.ask("/system-agent-install.sh")).content().split(b"\n\n")[0]


@pytest.mark.parametrize("name", ["rancher-system-agent-arm64", "../nodes.py", "..%2fnodes.py", "a/b", "", ".hidden"])
async def test_what_is_not_there_is_not_served(here: Site, name: str) -> None:
    assert (await here.ask(f"/assets/{name}")).status == 404


async def test_a_directory_of_the_host_has_more(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("assets")
    (directory / "rancher-system-agent-amd64").write_bytes(b"x" * 600_000)
    async with site(**{"system-agent-assets": str(directory)}) as here:
        answer = await here.ask("/assets/rancher-system-agent-amd64")
        assert answer.stream is not None
        assert b"".join([piece async for piece in answer.stream]) == b"x" * 600_000


async def test_other_paths_are_others(here: Site) -> None:
    assert await here.nodes.handle(Request("GET", "/api/v1/nodes")) is None
    assert await here.nodes.handle(Request("POST", AGENT)) is None
