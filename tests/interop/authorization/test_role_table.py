"""Every default role against every kind and verb, on both engines: what it grants in the manager's cluster is the table
in `role_table.txt`, and nothing else. Widening a role fails here until the table says so too.

Columns of the table: who, where (`*`: in every namespace and at cluster scope), what, and the verbs. What a role grants
in a managed cluster is not in it, but for the roles of `local`, the manager's own. After a deliberate change, run this
test on the embedded server with HERDER_WRITE_ROLE_TABLE=1, and review the difference.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import pytest

from herder.api.capi.kinds import NAMESPACE
from herder.api.identity.builtin_roles import GLOBAL_ROLES, ROLE_TEMPLATES
from herder.api.identity.crds import CRDS
from herder.api.identity.projects import PROJECT_ID
from herder.api.identity.roles import CLUSTER_ROLE, RBAC, template_role_name
from herder.api.management.clusters import local_cluster
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    MANAGEMENT_CLUSTER,
    PROJECT,
    PROJECT_BINDING,
    ROLE_TEMPLATE,
)
from herder.app.host.process import wall_clock
from herder.app.install import install_kinds
from herder.controllers.identity import cluster_bindings, global_bindings, global_roles, project_bindings, projects
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.manager import Manager
from tests.support.api import Api
from tests.support.engines import Engine, remove_kinds
from tests.support.manager.cluster_namespaces import namespace_of

TABLE = Path(__file__).with_name("role_table.txt")
CONTROLLERS = tuple(
    module.CONTROLLER for module in (global_roles, global_bindings, cluster_bindings, projects, project_bindings)
)
MANAGED, OWN, TEAM = "c-m-roles", "local", "team"
PLACES = (
    "kube-system",
    "cattle-system",
    "cattle-global-data",
    "cattle-tokens",
    "cattle-local-user-passwords",
    "fleet-default",
    "fleet-local",
    MANAGED,
    f"{MANAGED}-p-roles",
    f"{OWN}-p-roles",
    TEAM,
)
ELSEWHERE = "default"  # no role has rules for it alone
NO_ROLE = "no role"
USERS = "system:authenticated"

GLOBAL = [role["metadata"]["name"] for role in GLOBAL_ROLES]
CONTEXTS = {role["metadata"]["name"]: role["context"] for role in ROLE_TEMPLATES}
POSITIONS = (NO_ROLE, *GLOBAL, *(f"{name} in {place}" for place in (MANAGED, OWN) for name in CONTEXTS))
PRIVILEGED = {"admin", f"cluster-owner in {OWN}", f"cluster-admin in {OWN}"}


def _obj(kind: Kind, name: str, namespace: str = "", **fields: object) -> Object:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **fields}


def user_of(position: str) -> str:
    return "u-" + position.replace(" ", "-")


def _bindings() -> Iterator[tuple[Kind, Object]]:
    for name in GLOBAL:
        fields = {"globalRoleName": name, "userName": user_of(name)}
        yield GLOBAL_ROLE_BINDING, _obj(GLOBAL_ROLE_BINDING, f"roles-{name}", **fields)
    for cluster in (MANAGED, OWN):
        for name, context in CONTEXTS.items():
            fields = {"roleTemplateName": name, "userName": user_of(f"{name} in {cluster}")}
            if context == "cluster":
                yield CLUSTER_BINDING, _obj(CLUSTER_BINDING, f"roles-{name}", cluster, clusterName=cluster, **fields)
            else:
                place, project = f"{cluster}-p-roles", f"{cluster}:p-roles"
                yield PROJECT_BINDING, _obj(PROJECT_BINDING, f"roles-{name}", place, projectName=project, **fields)


def _objects() -> Iterator[tuple[Kind, Object]]:
    yield MANAGEMENT_CLUSTER, local_cluster()
    yield MANAGEMENT_CLUSTER, _obj(MANAGEMENT_CLUSTER, MANAGED, spec={})
    for place in (*PLACES, OWN):
        if not place.endswith("-p-roles"):  # which the controller creates
            space = _obj(NAMESPACE, place)
            if place == TEAM:
                space["metadata"]["annotations"] = {PROJECT_ID: f"{OWN}:p-roles"}
            yield NAMESPACE, space
    for kind, shipped in ((GLOBAL_ROLE, GLOBAL_ROLES), (ROLE_TEMPLATE, ROLE_TEMPLATES)):
        yield from ((kind, role) for role in shipped)
    for cluster in (MANAGED, OWN):
        yield PROJECT, _obj(PROJECT, "p-roles", cluster, spec={"clusterName": cluster})


async def _create(client: Client, kind: Kind, obj: Object) -> None:
    async with asyncio.timeout(60):
        while True:  # a controller creates the namespace of a project
            try:
                await client.create(kind.resource, obj, namespace=obj["metadata"].get("namespace", ""))
            except AlreadyExists:
                return
            except NotFound:
                await asyncio.sleep(0.05)
            else:
                return


async def _remove_all(client: Client) -> None:
    """Clusters first: bindings of a disconnected cluster wait until their rights there are revoked."""
    objects = [*_objects(), *_bindings()]
    last = (NAMESPACE, GLOBAL_ROLE, ROLE_TEMPLATE)
    objects.sort(key=lambda pair: (pair[0] != MANAGEMENT_CLUSTER, pair[0] in last))
    for kind, obj in objects:
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        if kind != NAMESPACE or name in (MANAGED, OWN, TEAM):  # other tests use the rest
            with suppress(NotFound):
                await client.delete(kind.resource, name, namespace=namespace)
    left: list[Object] = []
    try:
        async with asyncio.timeout(120):
            for kind in (GLOBAL_ROLE_BINDING, CLUSTER_BINDING, PROJECT_BINDING, PROJECT):
                while left := (await client.list_all(kind.resource)).items:
                    await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not deleted after two minutes: {left}") from None


@pytest.fixture(scope="module")
async def admin(engine: Engine) -> AsyncIterator[Api]:
    """The administrator of a server on which each role has one user. Controllers grant the rights."""
    async with AsyncExitStack() as stack:
        client, api = engine.client(), Api(engine.connection)
        stack.push_async_callback(client.close)
        stack.push_async_callback(api.close)
        await _assign_roles(client, api, stack)
        yield api


async def _assign_roles(client: Client, api: Api, stack: AsyncExitStack) -> None:
    """Give each role to a user. The stack undoes each step, also after a failure: other modules use the same server."""
    kinds = {f"{kind.plural}.{kind.group}" for kind, _ in (*_objects(), *_bindings())}
    definitions = [each for each in (*CRDS, *MANAGEMENT_CRDS) if each["metadata"]["name"] in kinds]
    watched = {"users.management.cattle.io", "clusters.provisioning.cattle.io"}  # by the controllers
    definitions += [each for each in (*CRDS, *MANAGEMENT_CRDS) if each["metadata"]["name"] in watched]
    await install_kinds(client, definitions)
    # Other tests in this folder compare all kinds of the server.
    stack.push_async_callback(remove_kinds, client, [each["metadata"]["name"] for each in definitions])
    stack.push_async_callback(_remove_template_roles, client)
    manager = Manager(client, list(CONTROLLERS), clock=wall_clock, entropy=Random(5).randbytes)
    running = asyncio.ensure_future(manager.run())
    stack.push_async_callback(_cancel, running)
    stack.push_async_callback(_remove_all, client)
    for kind, obj in (*_objects(), *_bindings()):
        is_home = kind == NAMESPACE and obj["metadata"]["name"] == MANAGED
        managed = await client.get(MANAGEMENT_CLUSTER.resource, MANAGED) if is_home else None
        await _create(client, kind, namespace_of(managed) if managed else obj)
    await _until_bound(api)


async def _remove_template_roles(client: Client) -> None:
    for name in (template_role_name(name) for name in CONTEXTS):
        with suppress(NotFound):
            await client.delete(CLUSTER_ROLE.resource, name)


async def _cancel(running: asyncio.Future[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def _until_bound(admin: Api) -> None:
    """A role in `local` gives rights there last, a project's in its namespaces."""
    probes = [(name, ELSEWHERE) for name in GLOBAL]
    probes += [(f"{name} in {MANAGED}", ELSEWHERE) for name in CONTEXTS]
    probes += [(f"{name} in {OWN}", ELSEWHERE if context == "cluster" else TEAM) for name, context in CONTEXTS.items()]
    of_all_users = await granted(admin, NO_ROLE, ELSEWHERE)
    async with asyncio.timeout(90):
        for position, place in probes:
            while not await granted(admin, position, place) - of_all_users:
                await asyncio.sleep(0.1)
    async with asyncio.timeout(90):  # until nothing changes any more: several objects give the rights of one binding
        before: list[str] = []
        while (now := await rows(admin)) != before:
            before = now
            await asyncio.sleep(0.5)


# --- granted rights ---------------------------------------------------------------------------------------------------

Grant = tuple[str, str]  # what, and one verb


def as_(admin: Api, position: str) -> Api:
    return admin.as_user(user_of(position), USERS)


async def granted(admin: Api, position: str, place: str) -> set[Grant]:
    """As the server answers it to the user."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": place}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    status = (await as_(admin, position).post(path, review)).expect(201)["status"]
    found: set[Grant] = set()
    for rule in status["resourceRules"]:
        found |= set(_grants(rule))
    return found | {(f"URL {url}", verb) for rule in status["nonResourceRules"] for url, verb in _urls(rule)}


def _grants(rule: Object) -> Iterator[Grant]:
    for group in rule.get("apiGroups") or [""]:
        for resource in rule["resources"]:
            what = f"{resource}.{group}" if group else resource
            for name in rule.get("resourceNames") or [""]:
                yield from ((f"{what} {name}".strip(), verb) for verb in rule["verbs"])


def _urls(rule: Object) -> Iterator[tuple[str, str]]:
    return ((url, verb) for url in rule["nonResourceURLs"] for verb in rule["verbs"])


async def rows(admin: Api) -> list[str]:
    keys = [(position, place) for position in POSITIONS for place in (ELSEWHERE, *PLACES)]
    grants = dict(zip(keys, await asyncio.gather(*(granted(admin, *key) for key in keys)), strict=True))
    of_all_users = grants[NO_ROLE, ELSEWHERE]
    lines: list[str] = []
    for position in POSITIONS:
        everywhere = grants[position, ELSEWHERE]
        lines += _rows(position, "*", everywhere if position == NO_ROLE else everywhere - of_all_users)
        for place in PLACES:
            lines += _rows(position, place, grants[position, place] - everywhere)
    return lines


def _rows(position: str, place: str, grants: Iterable[Grant]) -> Iterator[str]:
    verbs: dict[str, set[str]] = {}
    for what, verb in grants:
        verbs.setdefault(what, set()).add(verb)
    for what in sorted(verbs):
        yield f"{position:<28} | {place:<20} | {what:<52} | {' '.join(sorted(verbs[what]))}"


async def test_roles_grant_what_the_table_says(admin: Api) -> None:
    found = await rows(admin)
    if os.environ.get("HERDER_WRITE_ROLE_TABLE"):
        TABLE.write_text("\n".join(found) + "\n")
    assert found == TABLE.read_text().splitlines()


# --- denied to ordinary roles -----------------------------------------------------------------------------------------

DANGEROUS = [
    (verb, group, resource, place)
    for verb, group, resources, places in (
        ("get list watch create update patch delete", "", "secrets serviceaccounts", ("kube-system", "cattle-system")),
        ("get list watch update patch delete", "", "secrets", ("fleet-default", "cattle-global-data")),
        ("get list watch create update patch delete", "", "secrets", ("cattle-tokens", "cattle-local-user-passwords")),
        ("create", "", "serviceaccounts/token pods pods/exec", ("kube-system", "cattle-system", "fleet-default")),
        ("create update patch bind escalate", RBAC, "roles rolebindings", ("fleet-default", MANAGED)),
        ("create update patch bind escalate", RBAC, "clusterroles clusterrolebindings", ("",)),
        ("create update patch delete escalate", "management.cattle.io", "globalroles globalrolebindings", ("",)),
        ("create update patch delete escalate", "management.cattle.io", "roletemplates users tokens settings", ("",)),
        ("create update patch delete", "management.cattle.io", "nodedrivers clusters/status", ("",)),
        ("create update patch delete", "management.cattle.io", "clusterroletemplatebindings projects", (MANAGED, OWN)),
        ("get create update patch", "management.cattle.io", "clusterregistrationtokens", (MANAGED, OWN)),
        ("get list create update patch", "rke.cattle.io", "rkebootstraps rkecontrolplanes", ("fleet-default",)),
        ("create update patch", "cluster.x-k8s.io", "clusters machines", ("fleet-default",)),
        ("create update patch delete", "apiextensions.k8s.io", "customresourcedefinitions", ("",)),
        ("create update patch delete", "admissionregistration.k8s.io", "validatingadmissionpolicies", ("",)),
        ("impersonate", "", "users groups serviceaccounts", ("",)),
        ("get", "", "nodes/proxy", ("",)),
    )
    for verb in verb.split()
    for resource in resources.split()
    for place in places
]  # fmt: skip


@pytest.mark.parametrize("position", [each for each in POSITIONS if each not in PRIVILEGED])
async def test_no_ordinary_role_leads_up(admin: Api, position: str) -> None:
    """As the authorizer answers it, kind by kind and verb by verb."""

    async def allowed(verb: str, group: str, resource: str, place: str) -> str:
        plural, _, subresource = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "namespace": place}
        spec = {"user": user_of(position), "groups": [USERS], "resourceAttributes": attributes}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return f"{verb} {group}/{resource} in {place}" if answer.expect(201)["status"]["allowed"] else ""

    answers = await asyncio.gather(*(allowed(*attempt) for attempt in DANGEROUS))
    assert [each for each in answers if each] == []


ATTEMPTS = (
    ("GET", "/api/v1/namespaces/fleet-default/secrets", None),
    ("GET", "/api/v1/namespaces/cattle-global-data/secrets", None),
    ("POST", "/api/v1/namespaces/kube-system/secrets", {"metadata": {"name": "roles-x"}}),
    ("POST", "/api/v1/namespaces/fleet-default/pods", {"metadata": {"name": "roles-x"}, "spec": {"containers": []}}),
    (
        "POST",
        "/api/v1/namespaces/fleet-default/serviceaccounts/default/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    ),
    (
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "roles-x"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        },
    ),
    (
        "POST",
        "/apis/management.cattle.io/v3/globalrolebindings",
        {**_obj(GLOBAL_ROLE_BINDING, "roles-x"), "globalRoleName": "admin", "userName": "mallory"},
    ),
    (
        "POST",
        f"/apis/management.cattle.io/v3/namespaces/{MANAGED}/clusterroletemplatebindings",
        {
            **_obj(CLUSTER_BINDING, "roles-x", MANAGED),
            "clusterName": MANAGED,
            "roleTemplateName": "cluster-owner",
            "userName": "mallory",
        },
    ),
    ("PUT", f"/apis/management.cattle.io/v3/clusters/{OWN}/status", local_cluster()),
)


@pytest.mark.parametrize("position", [each for each in POSITIONS if each not in PRIVILEGED])
async def test_attempts_to_get_more_are_refused(admin: Api, position: str) -> None:
    for method, path, body in ATTEMPTS:
        answer = await as_(admin, position).send(method, path, body)
        assert answer.status == 403, (path, answer.text)


async def test_owner_creates_no_other_cluster(admin: Api) -> None:
    """A POST of a custom resource to the path of an object is authorized by the name in the path. The server then
    creates the object in the body, so a right to create one name is a right to create all."""
    other = _obj(MANAGEMENT_CLUSTER, "c-roles-other", spec={})
    answer = await as_(admin, f"cluster-owner in {MANAGED}").post(
        f"/apis/{MANAGEMENT_CLUSTER.api_version}/{MANAGEMENT_CLUSTER.plural}/{MANAGED}", other
    )
    try:
        assert answer.status == 403
    finally:
        await admin.delete(f"/apis/{MANAGEMENT_CLUSTER.api_version}/{MANAGEMENT_CLUSTER.plural}/c-roles-other")
