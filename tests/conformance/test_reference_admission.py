"""References to objects of others: both engines reject what the user may not use directly."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from herder.api.capi.core import MUTATING_WEBHOOKS
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.inmemory.crds import CRDS as IN_MEMORY_CRDS
from herder.api.inmemory.kinds import IN_MEMORY_CONTROL_PLANE
from herder.api.machines.credentials import CREATOR
from herder.api.machines.hosts import HOSTED_DRIVERS
from herder.api.machines.kinds import MACHINE_GROUP, kinds_of
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.references.approvals import APPROVED, REVIEW
from herder.gateway.webhooks import reference_review
from tests.conformance.objects import define, definition, ensure_defined
from tests.support.admission_servers import MANAGER, provisioning_cluster, resource_path
from tests.support.api import Api
from tests.support.engines import unique
from tests.support.rbac import grant, grant_everywhere, revoke

CLUSTERS = resource_path(PROVISIONING_CLUSTER)
EVERYTHING_OF_OURS = [
    {"apiGroups": ["provisioning.cattle.io", "rke-machine-config.cattle.io"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
]


def secret(name: str, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": annotations}, "stringData": {"key": "value"}}


def reading(*names: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [*names], "verbs": ["get"]}


@pytest.fixture
async def admin(admission_admin: Api) -> Api:
    return await admission_admin.in_new_namespace()


@pytest.fixture
async def mallory(admin: Api) -> Api:
    """A user who may write Clusters and create Secrets in the namespace, but read none of its Secrets."""
    await grant(admin, "mallory", "mallory", EVERYTHING_OF_OURS)
    return admin.as_user("mallory")


def named(**rke_config: Any) -> dict[str, Any]:
    return provisioning_cluster(**rke_config)


def with_credential(place: str) -> dict[str, Any]:
    cluster = provisioning_cluster()
    cluster["spec"]["cloudCredentialSecretName"] = place
    return cluster


FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "cloud credential": (with_credential("theirs"), "spec.cloudCredentialSecretName"),
    "cloud credential of a pool": (
        named(machinePools=[{"name": "a", "cloudCredentialSecretName": "theirs"}]),
        "spec.rkeConfig.machinePools[a].cloudCredentialSecretName",
    ),
    "registry password": (
        named(registries={"configs": {"example.com": {"authConfigSecretName": "theirs"}}}),
        "spec.rkeConfig.registries.configs[example.com].authConfigSecretName",
    ),
    "registry key": (
        named(registries={"configs": {"example.com": {"tlsSecretName": "theirs"}}}),
        "spec.rkeConfig.registries.configs[example.com].tlsSecretName",
    ),
    "file on machines": (
        named(machineSelectorFiles=[{"fileSources": [{"secret": {"name": "theirs"}}]}]),
        "spec.rkeConfig.machineSelectorFiles[0].fileSources[0].secret.name",
    ),
    "S3 credential": (
        named(etcd={"s3": {"cloudCredentialName": "theirs"}}),
        "spec.rkeConfig.etcd.s3.cloudCredentialName",
    ),
    "cloud provider configuration": (
        named(machineGlobalConfig={"cloud-provider-config": "secret://NAMESPACE:theirs"}),
        "spec.rkeConfig.machineGlobalConfig.cloud-provider-config",
    ),
}


def in_namespace(obj: Any, namespace: str) -> Any:
    """Return a copy in which the test's namespace replaces the placeholder."""
    if isinstance(obj, dict):
        return {key: in_namespace(value, namespace) for key, value in obj.items()}
    if isinstance(obj, list):
        return [in_namespace(value, namespace) for value in obj]
    return obj.replace("NAMESPACE", namespace) if isinstance(obj, str) else obj


@pytest.mark.parametrize("case", FOREIGN)
async def test_a_cluster_cannot_reference_an_unreadable_secret(admin: Api, mallory: Api, case: str) -> None:
    await admin.create("secrets", secret("theirs"))
    cluster, field = FOREIGN[case]
    answer = await mallory.post(mallory.at(CLUSTERS), in_namespace(cluster, admin.namespace))
    assert (answer.status, answer.reason) == (403, "Forbidden"), answer.text
    assert field in answer.message
    assert 'cannot get resource "secrets"' in answer.message


async def test_references_to_other_providers_are_not_reviewed(admin: Api, mallory: Api) -> None:
    """Controllers treat it as an object of another provider, even if a config kind has the same name."""
    await admin.create("secrets", secret("theirs"))
    pools = [{"name": "a", "machineConfigRef": {"apiVersion": "v1", "kind": "Secret", "name": "theirs"}}]
    answer = await mallory.post(mallory.at(CLUSTERS), named(machinePools=pools))
    assert answer.status == 403, answer.text
    assert 'cannot update resource "secrets"' in answer.message


async def test_a_credential_of_another_namespace_needs_rights_there(admission_admin: Api, mallory: Api) -> None:
    answer = await mallory.post(mallory.at(CLUSTERS), with_credential("cattle-global-data:theirs"))
    assert answer.status == 403, answer.text
    assert 'in the namespace "cattle-global-data"' in answer.message


@pytest.mark.parametrize("mark", ["provisioning.cattle.io/sync", "provisioning.cattle.io/sync-bootstrap"])
async def test_secret_sync_needs_rights_on_the_target_cluster(admin: Api, mark: str) -> None:
    await grant(admin, "guest", "guest", [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}])
    guest = admin.as_user("guest")
    await admin.create(CLUSTERS, provisioning_cluster())
    marks = {mark: "true", "rke.cattle.io/object-authorized-for-clusters": "one"}
    answer = await guest.post(guest.at("secrets"), secret("planted", **marks))
    assert answer.status == 403, answer.text
    assert 'cannot update resource "clusters"' in answer.message
    await admin.create("secrets", secret("given", **marks))
    url = guest.at("secrets", "given")
    (await guest.patch(url, {"stringData": {"key": "another"}})).expect(200)
    redirected = {"metadata": {"annotations": {"provisioning.cattle.io/sync-target-name": "elsewhere"}}}
    assert (await guest.patch(url, redirected)).status == 403


async def test_rights_on_one_name_do_not_approve_a_missing_object(admin: Api, mallory: Api) -> None:
    """The creator of a Secret has such a permission until shortly after its deletion. The next Secret may be another
    user's."""
    await grant(admin, "creator", "mallory", [reading("gone")])
    answer = await mallory.post(mallory.at(CLUSTERS), with_credential("gone"))
    assert answer.status == 403, answer.text
    assert 'cannot get resource "secrets"' in answer.message
    await grant(admin, "reader", "mallory", [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}])
    (await mallory.post(mallory.at(CLUSTERS), with_credential("gone"))).expect(201)


# --- record of approvals ----------------------------------------------------------------------------------------------


def record(obj: Any) -> list[dict[str, str]] | None:
    text = (obj["metadata"].get("annotations") or {}).get(APPROVED)
    return json.loads(text) if text is not None else None


async def test_an_approved_reference_is_recorded_with_its_target_and_author(admin: Api, mallory: Api) -> None:
    own = await admin.create("secrets", secret("own"))
    await grant(admin, "reader", "mallory", [reading("own")])
    created = await mallory.create(CLUSTERS, with_credential("own"))
    expected = {"path": "spec.cloudCredentialSecretName", "resource": "secrets", "namespace": admin.namespace}
    expected |= {"name": "own", "uid": own["metadata"]["uid"], "author": "mallory"}
    assert record(created) == [expected]


async def test_users_cannot_write_the_record(admin: Api, mallory: Api) -> None:
    theirs = await admin.create("secrets", secret("theirs"))
    forged = [{"path": "spec.cloudCredentialSecretName", "resource": "secrets", "namespace": admin.namespace}]
    forged[0] |= {"name": "theirs", "uid": theirs["metadata"]["uid"], "author": "admin"}
    cluster = provisioning_cluster()
    cluster["metadata"]["annotations"] = {APPROVED: json.dumps(forged)}
    assert record(await mallory.create(CLUSTERS, cluster)) is None
    url = mallory.at(CLUSTERS, "one")
    patch = {"metadata": {"annotations": {APPROVED: json.dumps(forged)}}}
    assert record((await mallory.patch(url, patch)).expect(200)) is None
    applied = {**cluster, "metadata": {**cluster["metadata"], "name": "one"}}
    applied["spec"] = {**cluster["spec"], "cloudCredentialSecretName": "theirs"}
    for answer in (
        await mallory.patch(url, {"spec": {"cloudCredentialSecretName": "theirs"}} | patch),
        await mallory.apply(url, applied, force=True),
    ):
        assert answer.status == 403, answer.text


def pool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "machineConfigRef": {"kind": "ShedConfig", "name": "sheds"}, **fields}


async def test_an_unchanged_reference_does_not_block_another_editor(admin: Api, mallory: Api) -> None:
    await admin.create("secrets", secret("theirs"))
    named_by_a = pool("a", cloudCredentialSecretName="theirs")
    before = record(await admin.create(CLUSTERS, provisioning_cluster(machinePools=[named_by_a, pool("b")])))
    url = mallory.at(CLUSTERS, "one")
    pools = [pool("b", quantity=2), named_by_a | {"quantity": 3}]
    written = (await mallory.patch(url, {"spec": {"rkeConfig": {"machinePools": pools}}})).expect(200)
    assert record(written) == before
    dropped = {"metadata": {"annotations": {APPROVED: None}}}
    assert record((await mallory.patch(url, dropped)).expect(200)) == before
    elsewhere = [*pools, pool("c", cloudCredentialSecretName="theirs")]
    answer = await mallory.patch(url, {"spec": {"rkeConfig": {"machinePools": elsewhere}}})
    assert answer.status == 403, answer.text


async def test_editors_of_a_cluster_cannot_change_its_dynamic_schema(admin: Api) -> None:
    """Machines get the config fields that dynamicSchemaSpec lists, such as limits and firewalls."""
    rules = [{"apiGroups": ["provisioning.cattle.io"], "resources": ["clusters"], "verbs": ["get", "patch"]}]
    await grant(admin, "editor", "editor", rules)
    editor, known = admin.as_user("editor"), pool("a", dynamicSchemaSpec='{"resourceFields":{"memory":{}}}')
    await admin.create(CLUSTERS, provisioning_cluster(machinePools=[known]))
    url = editor.at(CLUSTERS, "one")
    chosen = {"spec": {"rkeConfig": {"machinePools": [known | {"dynamicSchemaSpec": '{"resourceFields":{}}'}]}}}
    answer = await editor.patch(url, chosen)
    assert (answer.status, "machinePools[a].dynamicSchemaSpec" in answer.message) == (403, True), answer.text
    (await editor.patch(url, {"spec": {"rkeConfig": {"machinePools": [known | {"quantity": 2}]}}})).expect(200)
    (await admin.patch(url, chosen)).expect(200)


async def test_a_recreated_target_is_approved_again_only_on_review(admin: Api, mallory: Api) -> None:
    await grant(admin, "reader", "mallory", [reading("own")])
    await admin.create("secrets", secret("own"))
    created = await mallory.create(CLUSTERS, with_credential("own"))
    (await admin.delete(admin.at("secrets", "own"))).expect(200)
    renewed = await admin.create("secrets", secret("own"))
    url = mallory.at(CLUSTERS, "one")
    written = (await mallory.patch(url, {"metadata": {"labels": {"a": "b"}}})).expect(200)
    assert record(written) == record(created)
    reviewed = (await mallory.patch(url, {"metadata": {"annotations": {REVIEW: "1"}}})).expect(200)
    assert [each["uid"] for each in record(reviewed) or ()] == [renewed["metadata"]["uid"]]
    await revoke(admin, "reader", "mallory", [reading("own")])
    answer = await mallory.patch(url, {"metadata": {"annotations": {REVIEW: "2"}}})
    assert answer.status == 403, answer.text


async def test_the_manager_copies_approvals_to_derived_objects(admin: Api) -> None:
    """References that it adds to a user's object are approved, too."""
    manager = admin.as_user(MANAGER.name, MANAGER.groups[0])
    cluster = with_credential("theirs")
    derived_record = [{"path": "spec.cloudCredentialSecretName", "resource": "secrets", "namespace": admin.namespace}]
    derived_record[0] |= {"name": "theirs", "uid": "of-an-earlier-one", "author": "mallory"}
    cluster["metadata"]["annotations"] = {APPROVED: json.dumps(derived_record)}
    assert record(await manager.create(CLUSTERS, cluster)) == derived_record
    patch = {"spec": {"rkeConfig": {"etcd": {"s3": {"cloudCredentialName": "backups"}}}}}
    added = record((await manager.patch(manager.at(CLUSTERS, "one"), patch)).expect(200)) or []
    assert [each["name"] for each in added] == ["theirs", "backups"]


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


async def test_the_response_does_not_reveal_whether_a_secret_exists(admin: Api, mallory: Api) -> None:
    await admin.create("secrets", secret("theirs"))
    answers = [await mallory.post(mallory.at(CLUSTERS), with_credential(name)) for name in ("theirs", "nobody")]
    assert answers[0].message.replace("theirs", "nobody") == answers[1].message


MALFORMED: dict[str, Any] = {
    "annotations that are a list": {"metadata": {"name": "one", "annotations": ["a"]}},
    "annotations that are text": {"metadata": {"name": "one", "annotations": "a"}},
    "a number as the record": {"metadata": {"name": "one", "annotations": {APPROVED: 1}}},
    "a spec that is a list": {"spec": ["a"]},
    "pools that are text": {"spec": {"rkeConfig": {"machinePools": "a"}}},
    "pools that are numbers": {"spec": {"rkeConfig": {"machinePools": [1, None]}}},
    "registries that are a list": {"spec": {"rkeConfig": {"registries": {"configs": [1]}}}},
    "a credential that is a mapping": {"spec": {"cloudCredentialSecretName": {"a": "b"}}},
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_objects_are_rejected_by_their_schema(mallory: Api, case: str) -> None:
    answer = await mallory.post(mallory.at(CLUSTERS), provisioning_cluster() | MALFORMED[case])
    assert answer.status in (400, 422), answer.text


# --- names that imply references --------------------------------------------------------------------------------------

CORE_CLUSTERS = resource_path(CLUSTER)
CLUSTER_AUTHOR = [
    {"apiGroups": ["cluster.x-k8s.io"], "resources": ["clusters"], "verbs": ["create", "update"]},
    {"apiGroups": ["example.com"], "resources": ["hosts"], "verbs": ["update"]},
]


def core_cluster(name: str) -> dict[str, Any]:
    reference = {"apiGroup": "example.com", "kind": "Host", "name": name}
    kind = {"apiVersion": CLUSTER.api_version, "kind": CLUSTER.kind}
    return {**kind, "metadata": {"name": name}, "spec": {"infrastructureRef": reference}}


@pytest.mark.parametrize("purpose", ["kubeconfig", "ca"])
async def test_a_cluster_name_needs_rights_on_the_secrets_it_implies(admin: Api, purpose: str) -> None:
    """The manager connects to a Cluster with these Secrets, and drains and deletes its Nodes for its Machines."""
    await admin.create("secrets", secret(f"theirs-{purpose}"))
    await grant(admin, "author", "author", CLUSTER_AUTHOR)
    author = admin.as_user("author")
    answer = await author.post(author.at(CORE_CLUSTERS), core_cluster("theirs"))
    assert (answer.status, answer.reason) == (403, "Forbidden"), answer.text
    assert 'cannot get resource "secrets"' in answer.message
    (await author.post(author.at(CORE_CLUSTERS), core_cluster("own"))).expect(201)
    await grant(admin, "reader", "author", [reading(f"theirs-{purpose}")])
    (await author.post(author.at(CORE_CLUSTERS), core_cluster("theirs"))).expect(201)


async def test_a_cluster_cannot_take_the_name_of_another_users_cluster(admin: Api) -> None:
    """The kubeconfig of an imported cluster may not exist yet."""
    imported = provisioning_cluster()
    await admin.create(CLUSTERS, imported)
    await grant(admin, "author", "author", CLUSTER_AUTHOR)
    author = admin.as_user("author")
    answer = await author.post(author.at(CORE_CLUSTERS), core_cluster(imported["metadata"]["name"]))
    assert (answer.status, answer.reason) == (403, "Forbidden"), answer.text
    assert 'cannot update resource "clusters" in API group "provisioning.cattle.io"' in answer.message


# --- callers of the webhook -------------------------------------------------------------------------------------------


async def test_reviews_from_other_clients_are_rejected(admin: Api, admission_admin: Api) -> None:
    """The response contains the UID of the target. It would reveal the object to any client that claims to be an
    administrator.
    """
    listed = await admission_admin.get(f"/apis/{MUTATING_WEBHOOKS.api_version}/{MUTATING_WEBHOOKS.plural}")
    hooks = [hook for each in listed.expect(200)["items"] for hook in each["webhooks"]]
    if not hooks:  # the embedded server reviews references itself, and serves no such path
        assert (await admission_admin.post(reference_review.PATH, {})).status == 404
        return
    url = next(hook["clientConfig"]["url"] for hook in hooks if reference_review.PATH in hook["clientConfig"]["url"])
    await admin.create("secrets", secret("theirs"))
    request = {
        "uid": "1",
        "kind": {"group": PROVISIONING_CLUSTER.group, "kind": PROVISIONING_CLUSTER.kind},
        "resource": {"group": PROVISIONING_CLUSTER.group, "resource": PROVISIONING_CLUSTER.plural},
        "namespace": admin.namespace,
        "name": "a",
        "operation": "CREATE",
        "object": with_credential("theirs"),
        "userInfo": {"username": "mallory", "groups": ["system:masters"]},
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    plain = url[: url.index(reference_review.PATH)] + reference_review.PATH
    async with aiohttp.ClientSession() as session, session.post(plain, json=review, ssl=False) as answer:
        assert answer.status == 404, await answer.text()
