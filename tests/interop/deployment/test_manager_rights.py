"""The manager needs each of its rights, and no other: its requests in the audit log of a kube-apiserver.

The manager runs as the service account of `tests/support/manager/account.py`, with all its parts. `make interop` runs
these tests.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_HEALTH_CHECK, SECRET
from herder.api.identity import roles
from herder.api.inmemory.manifest import in_memory_cluster
from herder.api.machines.credentials import CREATOR, CREDENTIAL_TYPE
from herder.api.machines.jobs import POD_DRIVER_ROLE, ROLE, ROLE_BINDING
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    MANAGEMENT_CLUSTER,
    PROJECT,
    PROJECT_BINDING,
    PROVISIONING_CLUSTER,
    ROLE_TEMPLATE,
)
from herder.api.management.names import DEFAULT_WORKSPACE
from herder.app.rbac.rights import PARTS, Right
from herder.app.rbac.roles import rules
from herder.engine.meta.kinds import Kind, Object
from tests.conformance.objects import deployment
from tests.provisioning import custom, machine_provisioning
from tests.support.capi import all_running, condition_status, create_objects, ensure_namespace, none_left, wait_until
from tests.support.manager.account import AUDIT_LOG, Request, requests_in
from tests.support.manager.node_agents import eventually
from tests.support.manager.provisioned import PROCESS, ManagerSite, real_site
from tests.support.manager.users import Manager, Person
from tests.support.peers import peer

pytestmark = pytest.mark.extended

Used = tuple[str, str, str, str]
"""Part, group, resource and verb."""


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ManagerSite]:
    """All parts of the manager. Logs of deleted machines and clusters are kept for a second only."""
    flags = ("--in-memory", "--capi-core=auto", "--set", "archive-retention=1s")
    async with real_site(tmp_path_factory.mktemp("real"), *flags, restricted=True) as site:
        yield site


@pytest.fixture(scope="module")
def manager(site: ManagerSite, tmp_path_factory: pytest.TempPathFactory) -> Manager:
    manager = Manager(tmp_path_factory.mktemp("users"), site.url, site.engine)
    manager.wait_until_users_exist()
    return manager


@pytest.fixture(scope="module")
def admin(manager: Manager) -> Person:
    """The administrator of the API server."""
    return manager.administrator


# --- scenarios ------------------------------------------------------------------------------------------------------


async def test_clusters_of_process_machines(site: ManagerSite) -> None:
    await machine_provisioning.snapshots_on_demand(site)


async def test_operations(site: ManagerSite) -> None:
    await machine_provisioning.rotations(site)


async def test_custom_machines(site: ManagerSite) -> None:
    await custom.one_node_with_delete(site)


async def test_a_pool_with_health_checks(site: ManagerSite) -> None:
    server = machine_provisioning.ALL_ROLES | {"quantity": 1}
    cluster = await site.create_cluster(
        "checked", server, {"workerRole": True, "quantity": 1, "unhealthyNodeTimeout": "5m"}
    )
    await cluster.wait()
    await cluster.wait_until(MACHINE_HEALTH_CHECK, lambda found: any("status" in each for each in found))
    await cluster.edit(lambda spec: spec["rkeConfig"]["machinePools"][1].pop("unhealthyNodeTimeout"))
    await cluster.wait_until(MACHINE_HEALTH_CHECK, none_left)
    await cluster.delete_and_wait(PROCESS.machine)


async def test_a_cluster_that_is_never_generated(site: ManagerSite) -> None:
    server = machine_provisioning.ALL_ROLES | {"quantity": 1, "cloudCredentialSecretName": "missing"}
    cluster = await site.create_cluster("heath", server)
    await cluster.wait_until(
        PROVISIONING_CLUSTER, lambda found: any(condition_status(each, "Stalled") == "True" for each in found)
    )
    await cluster.delete_and_wait(PROCESS.machine)
    await cluster.wait_until(PROCESS.config, none_left)


async def test_an_in_memory_cluster(site: ManagerSite) -> None:
    client, namespace = site.client, "pasture"
    await ensure_namespace(client, namespace)
    await create_objects(client, namespace, in_memory_cluster("merino", workers=1))
    await wait_until(client, MACHINE, namespace, all_running(2))
    await client.delete(CLUSTER.resource, "merino", namespace=namespace)
    await wait_until(client, CLUSTER, namespace, none_left)


def test_users_and_their_clusters(manager: Manager, admin: Person) -> None:
    dolly = manager.user("dolly")
    admin.herder("grant", "dolly", "--global-role", "host-machines")
    dolly.herder("create", "cluster", "meadow", "--servers", "1", "--workers", "0")
    dolly.herder("describe", "cluster", "meadow", "--expand")
    dolly.herder("logs", "cluster", "meadow")
    dolly.herder("snapshot", "create", "meadow")
    listed = json.loads(dolly.herder("snapshot", "list", "meadow", "-o", "json"))["items"]
    dolly.herder("snapshot", "delete", "meadow", listed[0]["metadata"]["name"], "--yes")
    dolly.herder("kubeconfig", "meadow")
    dolly.herder("import", "barn")
    dolly.herder("delete", "cluster", "barn", "--yes")
    dolly.herder("delete", "cluster", "meadow", "--yes")
    dolly.herder("logout")


def test_a_cloud_credential_of_a_user(manager: Manager, admin: Person) -> None:
    polly, id_ = manager.user("polly"), _id_of(admin, "polly")
    meta: Object = {"name": "wool", "namespace": "cattle-global-data", "annotations": {CREATOR: id_}}
    fields = {"type": CREDENTIAL_TYPE, "stringData": {"amazonec2credentialConfig-accessKey": "a"}}
    polly.kubectl("create", "-f", "-", stdin=_manifest(SECRET, meta, **fields))
    own = ("-n", "cattle-global-data", "get", "secret", "wool", "-o", "json")
    secret = json.loads(eventually(lambda: polly.kubectl(*own, check=False) or None, "its creator can read it"))
    secret["data"]["amazonec2credentialConfig-accessKey"] = "Yg=="
    polly.kubectl("replace", "-f", "-", stdin=json.dumps(secret))
    polly.kubectl("-n", "cattle-global-data", "delete", "secret", "wool", "--wait=false")


def _id_of(admin: Person, name: str) -> str:
    lines = (line.split() for line in admin.herder("users", "list").splitlines()[1:])
    return next(line[0] for line in lines if line[1] == name)


def test_administrators_act_as_others(manager: Manager, admin: Person) -> None:
    holly = manager.user("holly")
    admin.herder("grant", "holly", "--global-role", "admin")
    eventually(lambda: holly.kubectl("get", "nodes", check=False) or None, "she is an administrator")
    account = "system:serviceaccount:default:default"
    assert account in holly.kubectl("auth", "whoami", f"--as={account}", "--as-group=shepherds")
    assert "u-somebody" in holly.kubectl("auth", "whoami", "--as=u-somebody")


def test_a_project_and_its_members(manager: Manager, admin: Person) -> None:
    meta = {"name": "p-fleece", "namespace": "local"}
    admin.kubectl("apply", "-f", "-", stdin=_manifest(PROJECT, meta, spec={"clusterName": "local", "displayName": "f"}))
    namespace = "local-p-fleece"
    eventually(lambda: admin.kubectl("get", "namespace", namespace, "-o", "name", check=False) or None, namespace)
    manager.user("molly")
    user = _id_of(admin, "molly")
    member = {"projectName": "local:p-fleece", "roleTemplateName": "project-member", "userName": user}
    binding = _manifest(PROJECT_BINDING, {"name": "molly", "namespace": namespace}, **member)
    admin.kubectl("apply", "-f", "-", stdin=binding)
    admin.kubectl("-n", "local", "delete", "projects.management.cattle.io", "p-fleece", "--timeout=60s")
    admin.kubectl("wait", "namespace", namespace, "--for=delete", "--timeout=60s")


def test_node_drivers_and_archived_logs(admin: Person) -> None:
    driver, crd = "digitalocean", "digitaloceanmachines.rke-machine.cattle.io"
    admin.kubectl("patch", "nodedriver", driver, "--type=merge", "-p", '{"spec": {"active": true}}')
    eventually(lambda: admin.kubectl("get", "crd", crd, "-o", "name", check=False) or None, "its kinds exist")
    admin.kubectl("patch", "nodedriver", driver, "--type=merge", "-p", '{"spec": {"active": false}}')
    admin.kubectl("wait", "crd", crd, "--for=delete", "--timeout=60s")
    admin.kubectl("delete", "nodedriver", driver, "--timeout=60s")
    logs = ("-n", "herder-archive", "get", "configmaps", "-l", "herder.io/archive", "-o", "name")
    eventually(lambda: "meadow" not in admin.kubectl(*logs) or None, "logs of the deleted cluster are deleted")


# --- rights that are no requests ------------------------------------------------------------------------------------

RBAC = "rbac.authorization.k8s.io"
MANAGEMENT = "management.cattle.io"
RULES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["deletecollection"]}]
USER_OF_ROLE = {"apiGroup": RBAC, "kind": "User", "name": "somebody"}


def _manifest(kind: Kind, metadata: Object, **fields: Any) -> str:
    return json.dumps({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields})


def _bound(role_kind: str, role: str, namespace: str) -> str:
    reference = {"apiGroup": RBAC, "kind": role_kind, "name": role}
    fields = {"roleRef": reference, "subjects": [USER_OF_ROLE]}
    return _manifest(ROLE_BINDING, {"name": "granted", "namespace": namespace}, **fields)


def _named(kind: Kind, name: str = "granted", namespace: str = "", **fields: Any) -> str:
    return _manifest(kind, {"name": name, **({"namespace": namespace} if namespace else {})}, **fields)


MEMBER = {"roleTemplateName": "cluster-member", "userName": "u-somebody"}
CREATED_BY = {"name": "granted", "namespace": DEFAULT_WORKSPACE, "annotations": {CREATOR: "u-somebody"}}
ASKED: dict[Used, str] = {
    ("gateway", RBAC, "clusterroles", "escalate"): _named(roles.CLUSTER_ROLE, rules=RULES),
    ("gateway", RBAC, "roles", "escalate"): _named(ROLE, namespace="default", rules=RULES),
    ("gateway", RBAC, "clusterroles", "bind"): _bound("ClusterRole", "cluster-admin", "default"),
    ("gateway", RBAC, "roles", "bind"): _bound("Role", "system:controller:bootstrap-signer", "kube-public"),
    ("machines", RBAC, "roles", "bind"): _bound("Role", POD_DRIVER_ROLE, "default"),
    ("gateway", MANAGEMENT, "clusters", "escalate"): _named(MANAGEMENT_CLUSTER, "c-m-abcd2345", spec={}),
    ("gateway", MANAGEMENT, "globalroles", "escalate"): _named(GLOBAL_ROLE, rules=RULES),
    ("gateway", MANAGEMENT, "roletemplates", "escalate"): _named(ROLE_TEMPLATE, rules=RULES, context="cluster"),
    ("gateway", MANAGEMENT, "globalrolebindings", "escalate"): _named(
        GLOBAL_ROLE_BINDING, globalRoleName="user", userName="u-somebody"
    ),
    ("gateway", MANAGEMENT, "clusterroletemplatebindings", "escalate"): _named(
        CLUSTER_BINDING, namespace="local", clusterName="local", **MEMBER
    ),
    ("gateway", MANAGEMENT, "projectroletemplatebindings", "escalate"): _named(
        PROJECT_BINDING, namespace="local", projectName="local:p-1", **MEMBER
    ),
    ("gateway", "provisioning.cattle.io", "clusters", "escalate"): _manifest(PROVISIONING_CLUSTER, CREATED_BY, spec={}),
}
"""Objects that only an account with the right can write. Admission policies and RBAC ask for it."""


WRITES = (Right(MANAGEMENT, ("projectroletemplatebindings",), ("create",), "so that the policy refuses it, not RBAC"),)


@pytest.mark.parametrize("used", ASKED, ids="-".join)
def test_a_write_is_refused_without_the_right(admin: Person, used: Used) -> None:
    part, group, resource, verb = used
    rule = [{"apiGroups": ["x.example.com"], "resources": ["x"], "verbs": ["x"]}]
    admin.kubectl("apply", "-f", "-", stdin=_named(ROLE, POD_DRIVER_ROLE, "default", rules=rule))
    rights = [*PARTS["base"], *PARTS[part], *WRITES]
    rules_without = rules([_without(right, group, resource, verb) for right in rights if not right.namespace])
    for name, granted in (("with", rules(rights)), ("without", [each for each in rules_without if each["verbs"]])):
        admin.kubectl("apply", "-f", "-", stdin=_named(roles.CLUSTER_ROLE, name, rules=granted))
        role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
        subjects = [{"apiGroup": RBAC, "kind": "User", "name": name}]
        binding = _named(roles.CLUSTER_ROLE_BINDING, name, roleRef=role, subjects=subjects)
        admin.kubectl("apply", "-f", "-", stdin=binding)

    def write(user: str) -> subprocess.CompletedProcess[str]:
        command = ("create", "--dry-run=server", f"--as={user}", "-f", "-")
        return admin.run(*command, stdin=ASKED[used], program=peer("kubectl"))

    eventually(lambda: write("with").returncode == 0 or None, write("with").stderr)
    eventually(lambda: "forbidden" in write("without").stderr or None, write("without").stderr)


def _without(right: Right, group: str, resource: str, verb: str) -> Right:
    """The right without this verb on this resource; a test has no other resource to keep it for."""
    if right.group != group or resource not in right.resources:
        return right
    return replace(right, verbs=tuple(each for each in right.verbs if each != verb))


# --- all of them ----------------------------------------------------------------------------------------------------

RARE: dict[Used, str] = {
    ("core", "cluster.x-k8s.io", "machinepools", "delete"): "Clusters with machine pools of other providers",
    ("base", "", "secrets", "update"): "the certificates of webhooks are renewed before they expire",
    ("gateway", "", "secrets", "update"): "registration tokens are replaced after a month",
    ("machines", "", "secrets", "update"): "granted to machine Jobs, which store the state of their machine",
}
"""Rights that nothing here uses, and what does."""


def test_a_second_core_removes_the_webhooks_of_the_first(admin: Person) -> None:
    """Runs late: the Cluster API core of this manager stays disabled."""
    admin.kubectl("create", "namespace", "capi-system")
    core = deployment("capi-controller-manager")
    core["metadata"] |= {"namespace": "capi-system", "labels": {"cluster.x-k8s.io/provider": "cluster-api"}}
    core["spec"]["replicas"] = 1
    admin.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", **core}))
    for kind in ("mutating", "validating"):
        name = f"{kind}webhookconfiguration/herder-cluster-api"
        admin.kubectl("wait", name, "--for=delete", "--timeout=60s")
    admin.kubectl("-n", "herder-system", "wait", "providers.clusterctl.cluster.x-k8s.io/cluster-api", "--for=delete")


def test_no_request_is_denied_and_every_right_is_used(site: ManagerSite) -> None:
    """Runs last: it stops the manager, which releases its Leases."""
    assert site.manager.stop() == 0
    log = site.engine.kubeconfig.parent / AUDIT_LOG
    requests = set(requests_in(log))
    assert sorted(request for request, is_denied in requests if is_denied) == []
    seen = {request for request, _ in requests}
    unused = {used for used, right in _granted() if not any(_uses(request, used, right) for request in seen)}
    assert sorted(unused - RARE.keys() - ASKED.keys()) == []
    assert RARE.keys() - unused == set(), "used, so not rare"


def _granted() -> Iterator[tuple[Used, Right]]:
    """Every right as one verb on one resource, without those to read again what a watch has shown.

    Informers list if the API server does not stream lists, and controllers get an object again after a write without
    a response. A watch of the same objects shows no less.
    """
    for part, rights in PARTS.items():
        for right in rights:
            for resource in right.resources:
                implied = {"get", "list"} if "watch" in right.verbs else set()
                yield from (((part, right.group, resource, verb), right) for verb in right.verbs if verb not in implied)


def _uses(request: Request, used: Used, right: Right) -> bool:
    _, _, resource, verb = used
    return request.verb == verb and resource in ("*", request.resource) and request.is_covered_by(right)
