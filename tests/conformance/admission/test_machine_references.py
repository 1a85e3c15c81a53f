"""References of Machines and of machine pools: both engines check the rights of their authors."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.inmemory.crds import CRDS as IN_MEMORY_CRDS
from herder.api.inmemory.kinds import IN_MEMORY_CONTROL_PLANE
from herder.api.machines.credentials import CREATOR
from herder.api.machines.hosts import HOSTED_DRIVERS
from herder.api.machines.kinds import MACHINE_GROUP, kinds_of
from herder.api.management.kinds import PROVISIONING_CLUSTER
from tests.conformance.admission.references import admin, mallory, reading, record, secret, with_credential
from tests.conformance.objects import define, definition, ensure_defined
from tests.support.api import Api
from tests.support.engines import unique
from tests.support.manager.admission_servers import MANAGER, provisioning_cluster, resource_path
from tests.support.rbac import grant, grant_everywhere

__all__ = ["admin", "mallory"]

CLUSTERS = resource_path(PROVISIONING_CLUSTER)


# --- kinds that the manager usually writes ----------------------------------------------------------------------------

MACHINES_RIGHTS = [
    {"apiGroups": ["cluster.x-k8s.io"], "resources": ["machines", "machinedeployments"], "verbs": ["*"]},
]
INFRASTRUCTURE = {"apiGroup": "rke-machine.cattle.io", "kind": "ShedMachineTemplate", "name": "theirs"}


def machine(**spec: Any) -> dict[str, Any]:
    base = {"clusterName": "one", "bootstrap": {"dataSecretName": "data"}, "infrastructureRef": INFRASTRUCTURE}
    meta = {"name": "m", "labels": {"cluster.x-k8s.io/cluster-name": "one"}}
    return {"apiVersion": MACHINE.api_version, "kind": "Machine", "metadata": meta, "spec": base | spec}


GRANTED: dict[str, dict[str, Any]] = {
    "spec.clusterName": {"apiGroups": ["cluster.x-k8s.io"], "resources": ["clusters"], "verbs": ["update"]},
    "spec.infrastructureRef": {
        "apiGroups": ["rke-machine.cattle.io"],
        "resources": ["shedmachinetemplates"],
        "verbs": ["update"],
    },
    "spec.bootstrap.dataSecretName": {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
}


@pytest.mark.parametrize("lacking", GRANTED)
async def test_a_machine_needs_rights_on_all_its_references(admin: Api, lacking: str) -> None:
    granted = [rule for field, rule in GRANTED.items() if field != lacking]
    await grant(admin, "mallory", "mallory", [*MACHINES_RIGHTS, *granted])
    mallory = admin.as_user("mallory")
    answer = await mallory.post(mallory.at(resource_path(MACHINE)), machine())
    assert answer.status == 403, answer.text
    assert f"{lacking}: " in answer.message
    await grant(admin, "rest", "mallory", [GRANTED[lacking]])
    (await mallory.post(mallory.at(resource_path(MACHINE)), machine())).expect(201)


async def test_an_in_memory_control_plane_needs_rights_on_its_template(admission_admin: Api, admin: Api) -> None:
    """The manager makes the Cluster own the template, which is deleted with it."""
    kind = IN_MEMORY_CONTROL_PLANE
    await ensure_defined(
        admission_admin, next(crd for crd in IN_MEMORY_CRDS if crd["spec"]["names"]["kind"] == kind.kind)
    )
    rules = [{"apiGroups": [kind.group], "resources": [kind.plural], "verbs": ["*"]}]
    await grant(admin, "mallory", "mallory", rules)
    mallory = admin.as_user("mallory")
    reference = {"apiGroup": kind.group, "kind": "InMemoryMachineTemplate", "name": "theirs"}
    spec = {"version": "v1.35.0", "machineTemplate": {"spec": {"infrastructureRef": reference}}}
    plane = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "one"}, "spec": spec}
    response = await mallory.post(mallory.at(resource_path(kind)), plane)
    assert response.status == 403, response.text
    assert "spec.machineTemplate.spec.infrastructureRef: " in response.message
    templates = {"apiGroups": [kind.group], "resources": ["inmemorymachinetemplates"], "verbs": ["update"]}
    await grant(admin, "templates", "mallory", [templates])
    (await mallory.post(mallory.at(resource_path(kind)), plane)).expect(201)


# --- default users --------------------------------------------------------------------------------------------------

CONFIGS = "rke-machine-config.cattle.io"


@pytest.fixture(scope="session")
async def driver(admission_admin: Api) -> str:
    """A node driver of which only the config CRD exists."""
    name = unique("drv").replace("-", "")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    await define(admission_admin, definition(CONFIGS, f"{name}configs", f"{name.capitalize()}Config", schema))
    return name


async def default_user(admin: Api, name: str) -> Api:
    """A user with GlobalRole `user`, who can create objects that it can neither get nor update."""
    rules = [
        {"apiGroups": ["provisioning.cattle.io"], "resources": ["clusters"], "verbs": ["create"]},
        {"apiGroups": [CONFIGS], "resources": ["*"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    ]
    await grant(admin, name, name, rules)
    return admin.as_user(name)


async def test_default_users_can_reference_only_their_own_objects(admin: Api, driver: str) -> None:
    kind, resource = f"{driver.capitalize()}Config", f"{CONFIGS}/v1/{driver}configs"
    alice, bob = await default_user(admin, "alice"), await default_user(admin, "bob")
    cluster = provisioning_cluster(machinePools=[{"name": "a", "machineConfigRef": {"kind": kind, "name": "sheds"}}])
    (await alice.post(alice.at(CLUSTERS) + "?dryRun=All", cluster)).expect(201)
    assert (await alice.post(alice.at(CLUSTERS), cluster)).status == 403  # the config could become another user's
    config = {"apiVersion": f"{CONFIGS}/v1", "kind": kind, "metadata": {"name": "sheds"}}
    claimed = {**config, "metadata": {"name": "sheds", "annotations": {CREATOR: "bob"}}}
    created = await alice.create(resource, claimed)
    assert created["metadata"]["annotations"] == {CREATOR: "alice"}
    await alice.create("secrets", secret("cc", **{CREATOR: "alice"}))
    assert (await bob.post(bob.at(CLUSTERS) + "?dryRun=All", cluster)).status == 403
    answer = await bob.post(bob.at(CLUSTERS), cluster)
    assert (answer.status, "machinePools[a].machineConfigRef" in answer.message) == (403, True), answer.text
    answer = await bob.post(bob.at(CLUSTERS), with_credential("cc"))
    assert (answer.status, "spec.cloudCredentialSecretName" in answer.message) == (403, True), answer.text
    cluster["spec"]["cloudCredentialSecretName"] = "cc"
    assert len(record(await alice.create(CLUSTERS, cluster)) or ()) == 2


@pytest.mark.parametrize("field", ["infrastructureRef", "machineConfigRef of another version"])
async def test_creators_use_a_machine_config_only_in_machine_pools(admin: Api, driver: str, field: str) -> None:
    """Cluster API makes a Cluster own its infrastructure and deletes it. The config may be that of another cluster."""
    kind, resource = f"{driver.capitalize()}Config", f"{CONFIGS}/v1/{driver}configs"
    alice = await default_user(admin, "alice")
    config = await alice.create(resource, {"apiVersion": f"{CONFIGS}/v1", "kind": kind, "metadata": {"name": "sheds"}})
    reference = {"apiVersion": config["apiVersion"], "kind": kind, "name": "sheds"}
    pool = {"name": "a", "machineConfigRef": {**reference, "apiVersion": f"{CONFIGS}/v2"}}
    used = {"infrastructureRef": reference} if field == "infrastructureRef" else {"machinePools": [pool]}
    answer = await alice.post(alice.at(CLUSTERS), provisioning_cluster(**used))
    assert (answer.status, 'which a reference to "sheds" needs' in answer.message) == (403, True), answer.text
    updating = {"apiGroups": [CONFIGS], "resources": ["*"], "verbs": ["update"]}
    await grant(admin, "updating", "alice", [updating])
    await alice.create(CLUSTERS, provisioning_cluster(**used))


@pytest.fixture(scope="session", params=HOSTED_DRIVERS)
async def hosted_driver(admission_admin: Api, request: pytest.FixtureRequest) -> str:
    """A node driver whose machines are processes on the manager's host, with config and template CRDs."""
    name: str = request.param
    kinds = kinds_of(name)
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in (kinds.config, kinds.template):
        await define(admission_admin, definition(kind.group, kind.plural, kind.kind, schema))
    return name


async def test_machines_on_the_managers_host_need_an_extra_right(admin: Api, hosted_driver: str) -> None:
    kinds = kinds_of(hosted_driver)
    mallory = await default_user(admin, "mallory")
    await grant(admin, "templates", "mallory", [{"apiGroups": [MACHINE_GROUP], "resources": ["*"], "verbs": ["*"]}])
    for kind in (kinds.config, kinds.template):
        obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "sheds"}}
        for url in (mallory.at(resource_path(kind)), mallory.at(resource_path(kind)) + "?dryRun=All"):
            answer = await mallory.post(url, obj)
            assert answer.status == 403, answer.text
            assert f'User "mallory" cannot use NodeDriver "{hosted_driver}"' in answer.message
        await admin.create(resource_path(kind), obj)
    url = mallory.at(resource_path(kinds.template), "sheds")
    (await mallory.patch(url, {"metadata": {"labels": {"a": "b"}}})).expect(200)
    assert (await mallory.patch(url, {"spec": {"template": {"spec": {"image": "/x"}}}})).status == 403
    role = {"apiGroups": ["management.cattle.io"], "resources": ["nodedrivers"], "verbs": ["use"]}
    name = unique("drivers")
    await grant_everywhere(admin, name, name, [role | {"resourceNames": [hosted_driver]}])
    trusted = await default_user(admin, name)
    config = {"apiVersion": kinds.config.api_version, "kind": kinds.config.kind, "metadata": {"name": "own"}}
    await trusted.create(resource_path(kinds.config), config)


async def test_config_fields_for_the_managers_host_need_that_right(admin: Api, hosted_driver: str) -> None:
    """Fields of a machine config are not in a spec. User data is one of them, and runs on the host."""
    kind = kinds_of(hosted_driver).config
    await grant(admin, "configs", "mallory", [{"apiGroups": [kind.group], "resources": ["*"], "verbs": ["*"]}])
    mallory = admin.as_user("mallory")
    await admin.create(
        resource_path(kind), {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "sheds"}}
    )
    url = mallory.at(resource_path(kind), "sheds")
    (await mallory.patch(url, {"metadata": {"labels": {"a": "b"}}})).expect(200)
    answer = await mallory.patch(url, {"userdata": "#!/bin/sh"})
    assert (answer.status, f'cannot use NodeDriver "{hosted_driver}"' in answer.message) == (403, True), answer.text


async def test_references_to_machines_on_the_managers_host_need_that_right(admin: Api, hosted_driver: str) -> None:
    """Otherwise users who cannot create a template could make the manager clone an administrator's."""
    kinds = kinds_of(hosted_driver)
    groups = [MACHINE_GROUP, kinds.config.group, MACHINE.group, PROVISIONING_CLUSTER.group]
    rules = [{"apiGroups": groups, "resources": ["*"], "verbs": ["*"]}]
    await grant(admin, "clusters", "mallory", rules)
    mallory = admin.as_user("mallory")
    for kind in (kinds.config, kinds.template):
        await admin.create(
            resource_path(kind), {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "x"}}
        )
    pool = {
        "name": "a",
        "quantity": 1,
        "workerRole": True,
        "machineConfigRef": {"kind": kinds.config.kind, "name": "x"},
    }
    cluster = provisioning_cluster(machinePools=[pool])
    infra = {"apiGroup": MACHINE_GROUP, "kind": kinds.template.kind, "name": "x"}
    spec = {"clusterName": "one", "bootstrap": {"dataSecretName": "x"}, "infrastructureRef": infra}
    machine = {"apiVersion": MACHINE.api_version, "kind": MACHINE.kind, "metadata": {"name": "one"}, "spec": spec}
    for kind, obj in ((PROVISIONING_CLUSTER, cluster), (MACHINE, machine)):
        answer = await mallory.post(mallory.at(resource_path(kind)), obj)
        assert answer.status == 403, answer.text
        assert f'User "mallory" cannot use NodeDriver "{hosted_driver}"' in answer.message
    created = await admin.create(
        resource_path(MACHINE), {**machine, "spec": {**spec, "bootstrap": {"dataSecretName": "y"}}}
    )
    url = mallory.at(resource_path(MACHINE), created["metadata"]["name"])
    (await mallory.patch(url, {"metadata": {"labels": {"a": "b"}}})).expect(200)
    answer = await mallory.patch(url, {"spec": {"bootstrap": {"dataSecretName": "z"}}})
    assert (answer.status, f'cannot use NodeDriver "{hosted_driver}"' in answer.message) == (403, True), answer.text


async def test_bootstrap_data_is_reviewed_again_without_its_config(admin: Api, mallory: Api) -> None:
    """The manager copies its name from the status of the config, in which users can name any Secret."""
    rules = [{"apiGroups": [CLUSTER.group, "b.example.org"], "resources": ["*"], "verbs": ["*"]}]
    await grant(admin, "machines", "mallory", rules)
    await admin.create("secrets", secret("theirs"))
    config = {"apiGroup": "b.example.org", "kind": "Boot", "name": "mine"}
    infra = {"apiGroup": "b.example.org", "kind": "Host", "name": "mine"}
    spec = {"clusterName": "one", "bootstrap": {"configRef": config}, "infrastructureRef": infra}
    machine = {"apiVersion": MACHINE.api_version, "kind": MACHINE.kind, "metadata": {"name": "one"}, "spec": spec}
    created = await mallory.create(resource_path(MACHINE), machine)
    url = mallory.at(resource_path(MACHINE), created["metadata"]["name"])
    manager = admin.as_user(MANAGER.name, MANAGER.groups[0])
    (await manager.patch(url, {"spec": {"bootstrap": {"dataSecretName": "theirs"}}})).expect(200)
    (await mallory.patch(url, {"metadata": {"labels": {"a": "b"}}})).expect(200)
    for other in (None, {**config, "name": "other"}):
        response = await mallory.patch(url, {"spec": {"bootstrap": {"configRef": other}}})
        assert response.status == 403, response.text
        assert 'spec.bootstrap.dataSecretName: User "mallory" cannot get resource "secrets"' in response.message
    await grant(admin, "reading", "mallory", [reading("theirs")])
    (await mallory.patch(url, {"spec": {"bootstrap": {"configRef": None}}})).expect(200)
