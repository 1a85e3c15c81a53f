"""References to objects of others: both engines reject what the user may not use directly."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from herder.api.capi.core import MUTATING_WEBHOOKS
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.machines.credentials import CREATOR
from herder.api.machines.hosts import HOSTED_DRIVERS
from herder.api.machines.kinds import MACHINE_GROUP, kinds_of
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.references.approvals import APPROVED, REVIEW
from herder.gateway.webhooks import reference_review
from tests.conformance.objects import define, definition
from tests.support.api import Api
from tests.support.engines import unique
from tests.support.judged import MANAGER, path, provisioned
from tests.support.rbac import grant, grant_everywhere, revoke

CLUSTERS = path(PROVISIONING_CLUSTER)
EVERYTHING_OF_OURS = [
    {"apiGroups": ["provisioning.cattle.io", "rke-machine-config.cattle.io"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
]


def secret(name: str, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": annotations}, "stringData": {"key": "value"}}


def reading(*names: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [*names], "verbs": ["get"]}


@pytest.fixture
async def admin(judged_admin: Api) -> Api:
    return await judged_admin.in_new_namespace()


@pytest.fixture
async def mallory(admin: Api) -> Api:
    """A user who may write Clusters and create Secrets in the namespace, but read none of its Secrets."""
    await grant(admin, "mallory", "mallory", EVERYTHING_OF_OURS)
    return admin.as_user("mallory")


def named(**rke_config: Any) -> dict[str, Any]:
    return provisioned(**rke_config)


def with_credential(place: str) -> dict[str, Any]:
    cluster = provisioned()
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
async def test_a_cluster_cannot_name_a_secret_that_its_author_may_not_read(admin: Api, mallory: Api, case: str) -> None:
    await admin.create("secrets", secret("theirs"))
    cluster, field = FOREIGN[case]
    answer = await mallory.post(mallory.at(CLUSTERS), in_namespace(cluster, admin.namespace))
    assert (answer.status, answer.reason) == (403, "Forbidden"), answer.text
    assert field in answer.message
    assert 'cannot get resource "secrets"' in answer.message


async def test_what_is_no_config_of_a_driver_is_not_reviewed_as_one(admin: Api, mallory: Api) -> None:
    """Controllers treat it as an object of another provider, even if a config kind has the same name."""
    await admin.create("secrets", secret("theirs"))
    pools = [{"name": "a", "machineConfigRef": {"apiVersion": "v1", "kind": "Secret", "name": "theirs"}}]
    answer = await mallory.post(mallory.at(CLUSTERS), named(machinePools=pools))
    assert answer.status == 403, answer.text
    assert 'cannot update resource "secrets"' in answer.message


async def test_a_credential_of_another_namespace_needs_the_right_there(judged_admin: Api, mallory: Api) -> None:
    answer = await mallory.post(mallory.at(CLUSTERS), with_credential("cattle-global-data:theirs"))
    assert answer.status == 403, answer.text
    assert 'in the namespace "cattle-global-data"' in answer.message


@pytest.mark.parametrize("mark", ["provisioning.cattle.io/sync", "provisioning.cattle.io/sync-bootstrap"])
async def test_a_secret_is_synced_only_into_clusters_that_its_author_may_change(admin: Api, mark: str) -> None:
    await grant(admin, "guest", "guest", [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}])
    guest = admin.as_user("guest")
    await admin.create(CLUSTERS, provisioned())
    marks = {mark: "true", "rke.cattle.io/object-authorized-for-clusters": "one"}
    answer = await guest.post(guest.at("secrets"), secret("planted", **marks))
    assert answer.status == 403, answer.text
    assert 'cannot update resource "clusters"' in answer.message
    await admin.create("secrets", secret("given", **marks))
    where = guest.at("secrets", "given")
    (await guest.patch(where, {"stringData": {"key": "another"}})).expect(200)
    redirected = {"metadata": {"annotations": {"provisioning.cattle.io/sync-target-name": "elsewhere"}}}
    assert (await guest.patch(where, redirected)).status == 403


async def test_a_right_on_one_name_approves_no_object_that_is_still_to_be_created(admin: Api, mallory: Api) -> None:
    """The creator of a Secret has such a permission until shortly after its deletion. The next Secret may be another
    user's."""
    await grant(admin, "creator", "mallory", [reading("gone")])
    answer = await mallory.post(mallory.at(CLUSTERS), with_credential("gone"))
    assert answer.status == 403, answer.text
    assert 'cannot get resource "secrets"' in answer.message
    await grant(admin, "reader", "mallory", [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}])
    (await mallory.post(mallory.at(CLUSTERS), with_credential("gone"))).expect(201)


# --- what is recorded -----------------------------------------------------------------------------------------------


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
    cluster = provisioned()
    cluster["metadata"]["annotations"] = {APPROVED: json.dumps(forged)}
    assert record(await mallory.create(CLUSTERS, cluster)) is None
    where = mallory.at(CLUSTERS, "one")
    patch = {"metadata": {"annotations": {APPROVED: json.dumps(forged)}}}
    assert record((await mallory.patch(where, patch)).expect(200)) is None
    applied = {**cluster, "metadata": {**cluster["metadata"], "name": "one"}}
    applied["spec"] = {**cluster["spec"], "cloudCredentialSecretName": "theirs"}
    for answer in (
        await mallory.patch(where, {"spec": {"cloudCredentialSecretName": "theirs"}} | patch),
        await mallory.apply(where, applied, force=True),
    ):
        assert answer.status == 403, answer.text


def pool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "machineConfigRef": {"kind": "ShedConfig", "name": "sheds"}, **fields}


async def test_an_unchanged_reference_does_not_block_another_editor(admin: Api, mallory: Api) -> None:
    await admin.create("secrets", secret("theirs"))
    named_by_a = pool("a", cloudCredentialSecretName="theirs")
    before = record(await admin.create(CLUSTERS, provisioned(machinePools=[named_by_a, pool("b")])))
    where = mallory.at(CLUSTERS, "one")
    pools = [pool("b", quantity=2), named_by_a | {"quantity": 3}]
    written = (await mallory.patch(where, {"spec": {"rkeConfig": {"machinePools": pools}}})).expect(200)
    assert record(written) == before
    dropped = {"metadata": {"annotations": {APPROVED: None}}}
    assert record((await mallory.patch(where, dropped)).expect(200)) == before
    elsewhere = [*pools, pool("c", cloudCredentialSecretName="theirs")]
    answer = await mallory.patch(where, {"spec": {"rkeConfig": {"machinePools": elsewhere}}})
    assert answer.status == 403, answer.text


async def test_an_editor_of_a_cluster_does_not_choose_which_fields_of_a_config_count(admin: Api) -> None:
    """Machines get the config fields that dynamicSchemaSpec lists, such as limits and firewalls."""
    rules = [{"apiGroups": ["provisioning.cattle.io"], "resources": ["clusters"], "verbs": ["get", "patch"]}]
    await grant(admin, "editor", "editor", rules)
    editor, known = admin.as_user("editor"), pool("a", dynamicSchemaSpec='{"resourceFields":{"memory":{}}}')
    await admin.create(CLUSTERS, provisioned(machinePools=[known]))
    where = editor.at(CLUSTERS, "one")
    chosen = {"spec": {"rkeConfig": {"machinePools": [known | {"dynamicSchemaSpec": '{"resourceFields":{}}'}]}}}
    answer = await editor.patch(where, chosen)
    assert (answer.status, "machinePools[a].dynamicSchemaSpec" in answer.message) == (403, True), answer.text
    (await editor.patch(where, {"spec": {"rkeConfig": {"machinePools": [known | {"quantity": 2}]}}})).expect(200)
    (await admin.patch(where, chosen)).expect(200)


async def test_a_recreated_target_is_approved_again_only_on_review(admin: Api, mallory: Api) -> None:
    await grant(admin, "reader", "mallory", [reading("own")])
    await admin.create("secrets", secret("own"))
    created = await mallory.create(CLUSTERS, with_credential("own"))
    (await admin.delete(admin.at("secrets", "own"))).expect(200)
    renewed = await admin.create("secrets", secret("own"))
    where = mallory.at(CLUSTERS, "one")
    written = (await mallory.patch(where, {"metadata": {"labels": {"a": "b"}}})).expect(200)
    assert record(written) == record(created)
    reviewed = (await mallory.patch(where, {"metadata": {"annotations": {REVIEW: "1"}}})).expect(200)
    assert [each["uid"] for each in record(reviewed) or ()] == [renewed["metadata"]["uid"]]
    await revoke(admin, "reader", "mallory", [reading("own")])
    answer = await mallory.patch(where, {"metadata": {"annotations": {REVIEW: "2"}}})
    assert answer.status == 403, answer.text


async def test_the_manager_hands_on_approvals_of_what_it_derives(admin: Api) -> None:
    """References that it adds to a user's object are approved, too."""
    manager = admin.as_user(MANAGER.name, MANAGER.groups[0])
    cluster = with_credential("theirs")
    handed = [{"path": "spec.cloudCredentialSecretName", "resource": "secrets", "namespace": admin.namespace}]
    handed[0] |= {"name": "theirs", "uid": "of-an-earlier-one", "author": "mallory"}
    cluster["metadata"]["annotations"] = {APPROVED: json.dumps(handed)}
    assert record(await manager.create(CLUSTERS, cluster)) == handed
    patch = {"spec": {"rkeConfig": {"etcd": {"s3": {"cloudCredentialName": "backups"}}}}}
    added = record((await manager.patch(manager.at(CLUSTERS, "one"), patch)).expect(200)) or []
    assert [each["name"] for each in added] == ["theirs", "backups"]


# --- kinds that are mostly written by the manager -------------------------------------------------------------------

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
async def test_a_machine_needs_rights_on_all_that_it_names(admin: Api, lacking: str) -> None:
    granted = [rule for field, rule in GRANTED.items() if field != lacking]
    await grant(admin, "mallory", "mallory", [*MACHINES_RIGHTS, *granted])
    mallory = admin.as_user("mallory")
    answer = await mallory.post(mallory.at(path(MACHINE)), machine())
    assert answer.status == 403, answer.text
    assert f"{lacking}: " in answer.message
    await grant(admin, "rest", "mallory", [GRANTED[lacking]])
    (await mallory.post(mallory.at(path(MACHINE)), machine())).expect(201)


# --- default users --------------------------------------------------------------------------------------------------

CONFIGS = "rke-machine-config.cattle.io"


@pytest.fixture(scope="session")
async def driver(judged_admin: Api) -> str:
    """A node driver of which only the config CRD exists."""
    name = unique("drv").replace("-", "")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    await define(judged_admin, definition(CONFIGS, f"{name}configs", f"{name.capitalize()}Config", schema))
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


async def test_default_users_can_use_what_they_created_and_nothing_of_each_other(admin: Api, driver: str) -> None:
    kind, resource = f"{driver.capitalize()}Config", f"{CONFIGS}/v1/{driver}configs"
    alice, bob = await default_user(admin, "alice"), await default_user(admin, "bob")
    cluster = provisioned(machinePools=[{"name": "a", "machineConfigRef": {"kind": kind, "name": "sheds"}}])
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
async def hosted_driver(judged_admin: Api, request: pytest.FixtureRequest) -> str:
    """A node driver whose machines are processes on the manager's host, with config and template CRDs."""
    name: str = request.param
    kinds = kinds_of(name)
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in (kinds.config, kinds.template):
        await define(judged_admin, definition(kind.group, kind.plural, kind.kind, schema))
    return name


async def test_machines_of_the_managers_host_need_a_right_of_their_own(admin: Api, hosted_driver: str) -> None:
    kinds = kinds_of(hosted_driver)
    mallory = await default_user(admin, "mallory")
    await grant(admin, "templates", "mallory", [{"apiGroups": [MACHINE_GROUP], "resources": ["*"], "verbs": ["*"]}])
    for kind in (kinds.config, kinds.template):
        obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "sheds"}}
        for where in (mallory.at(path(kind)), mallory.at(path(kind)) + "?dryRun=All"):
            answer = await mallory.post(where, obj)
            assert answer.status == 403, answer.text
            assert f'User "mallory" cannot use NodeDriver "{hosted_driver}"' in answer.message
        await admin.create(path(kind), obj)
    where = mallory.at(path(kinds.template), "sheds")
    (await mallory.patch(where, {"metadata": {"labels": {"a": "b"}}})).expect(200)
    assert (await mallory.patch(where, {"spec": {"template": {"spec": {"image": "/x"}}}})).status == 403
    role = {"apiGroups": ["management.cattle.io"], "resources": ["nodedrivers"], "verbs": ["use"]}
    name = unique("drivers")
    await grant_everywhere(admin, name, name, [role | {"resourceNames": [hosted_driver]}])
    trusted = await default_user(admin, name)
    config = {"apiVersion": kinds.config.api_version, "kind": kinds.config.kind, "metadata": {"name": "own"}}
    await trusted.create(path(kinds.config), config)


async def test_fields_of_a_config_for_the_managers_host_need_that_right_too(admin: Api, hosted_driver: str) -> None:
    """Fields of a machine config are not in a spec. User data is one of them, and runs on the host."""
    kind = kinds_of(hosted_driver).config
    await grant(admin, "configs", "mallory", [{"apiGroups": [kind.group], "resources": ["*"], "verbs": ["*"]}])
    mallory = admin.as_user("mallory")
    await admin.create(path(kind), {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "sheds"}})
    where = mallory.at(path(kind), "sheds")
    (await mallory.patch(where, {"metadata": {"labels": {"a": "b"}}})).expect(200)
    answer = await mallory.patch(where, {"userdata": "#!/bin/sh"})
    assert (answer.status, f'cannot use NodeDriver "{hosted_driver}"' in answer.message) == (403, True), answer.text


async def test_references_to_machines_of_the_managers_host_need_that_right_too(admin: Api, hosted_driver: str) -> None:
    """Otherwise users who cannot create a template could make the manager clone an administrator's."""
    kinds = kinds_of(hosted_driver)
    groups = [MACHINE_GROUP, kinds.config.group, MACHINE.group, PROVISIONING_CLUSTER.group]
    rules = [{"apiGroups": groups, "resources": ["*"], "verbs": ["*"]}]
    await grant(admin, "clusters", "mallory", rules)
    mallory = admin.as_user("mallory")
    for kind in (kinds.config, kinds.template):
        await admin.create(path(kind), {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "x"}})
    pool = {
        "name": "a",
        "quantity": 1,
        "workerRole": True,
        "machineConfigRef": {"kind": kinds.config.kind, "name": "x"},
    }
    cluster = provisioned(machinePools=[pool])
    infra = {"apiGroup": MACHINE_GROUP, "kind": kinds.template.kind, "name": "x"}
    spec = {"clusterName": "one", "bootstrap": {"dataSecretName": "x"}, "infrastructureRef": infra}
    machine = {"apiVersion": MACHINE.api_version, "kind": MACHINE.kind, "metadata": {"name": "one"}, "spec": spec}
    for kind, obj in ((PROVISIONING_CLUSTER, cluster), (MACHINE, machine)):
        answer = await mallory.post(mallory.at(path(kind)), obj)
        assert answer.status == 403, answer.text
        assert f'User "mallory" cannot use NodeDriver "{hosted_driver}"' in answer.message
    created = await admin.create(path(MACHINE), {**machine, "spec": {**spec, "bootstrap": {"dataSecretName": "y"}}})
    where = mallory.at(path(MACHINE), created["metadata"]["name"])
    (await mallory.patch(where, {"metadata": {"labels": {"a": "b"}}})).expect(200)
    answer = await mallory.patch(where, {"spec": {"bootstrap": {"dataSecretName": "z"}}})
    assert (answer.status, f'cannot use NodeDriver "{hosted_driver}"' in answer.message) == (403, True), answer.text


async def test_the_answer_does_not_say_whether_a_secret_exists(admin: Api, mallory: Api) -> None:
    await admin.create("secrets", secret("theirs"))
    answers = [await mallory.post(mallory.at(CLUSTERS), with_credential(name)) for name in ("theirs", "nobody")]
    assert answers[0].message.replace("theirs", "nobody") == answers[1].message


ODD: dict[str, Any] = {
    "annotations that are a list": {"metadata": {"name": "one", "annotations": ["a"]}},
    "annotations that are text": {"metadata": {"name": "one", "annotations": "a"}},
    "a number as the record": {"metadata": {"name": "one", "annotations": {APPROVED: 1}}},
    "a spec that is a list": {"spec": ["a"]},
    "pools that are text": {"spec": {"rkeConfig": {"machinePools": "a"}}},
    "pools that are numbers": {"spec": {"rkeConfig": {"machinePools": [1, None]}}},
    "registries that are a list": {"spec": {"rkeConfig": {"registries": {"configs": [1]}}}},
    "a credential that is a mapping": {"spec": {"cloudCredentialSecretName": {"a": "b"}}},
}


@pytest.mark.parametrize("case", ODD)
async def test_objects_of_any_shape_are_refused_by_their_schema(mallory: Api, case: str) -> None:
    answer = await mallory.post(mallory.at(CLUSTERS), provisioned() | ODD[case])
    assert answer.status in (400, 422), answer.text


# --- names that lead to other objects -------------------------------------------------------------------------------

CORE_CLUSTERS = path(CLUSTER)
CLUSTER_AUTHOR = [
    {"apiGroups": ["cluster.x-k8s.io"], "resources": ["clusters"], "verbs": ["create", "update"]},
    {"apiGroups": ["example.com"], "resources": ["hosts"], "verbs": ["update"]},
]


def core_cluster(name: str) -> dict[str, Any]:
    reference = {"apiGroup": "example.com", "kind": "Host", "name": name}
    kind = {"apiVersion": CLUSTER.api_version, "kind": CLUSTER.kind}
    return {**kind, "metadata": {"name": name}, "spec": {"infrastructureRef": reference}}


@pytest.mark.parametrize("purpose", ["kubeconfig", "ca"])
async def test_a_cluster_does_not_take_a_name_whose_secrets_its_author_may_not_read(admin: Api, purpose: str) -> None:
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


async def test_a_cluster_does_not_take_the_name_of_a_provisioning_cluster_of_others(admin: Api) -> None:
    """The kubeconfig of an imported cluster may not exist yet."""
    imported = provisioned()
    await admin.create(CLUSTERS, imported)
    await grant(admin, "author", "author", CLUSTER_AUTHOR)
    author = admin.as_user("author")
    answer = await author.post(author.at(CORE_CLUSTERS), core_cluster(imported["metadata"]["name"]))
    assert (answer.status, answer.reason) == (403, "Forbidden"), answer.text
    assert 'cannot update resource "clusters" in API group "provisioning.cattle.io"' in answer.message


# --- who asks -------------------------------------------------------------------------------------------------------


async def test_a_review_that_no_api_server_sent_is_not_answered(admin: Api, judged_admin: Api) -> None:
    """The answer has the UID of the target: it tells that the object exists to who claims to be an administrator."""
    listed = await judged_admin.get(f"/apis/{MUTATING_WEBHOOKS.api_version}/{MUTATING_WEBHOOKS.plural}")
    hooks = [hook for each in listed.expect(200)["items"] for hook in each["webhooks"]]
    if not hooks:  # the embedded server reviews references itself, and serves no such path
        assert (await judged_admin.post(reference_review.PATH, {})).status == 404
        return
    url = next(hook["clientConfig"]["url"] for hook in hooks if reference_review.PATH in hook["clientConfig"]["url"])
    await admin.create("secrets", secret("theirs"))
    asked = {
        "uid": "1",
        "kind": {"group": PROVISIONING_CLUSTER.group, "kind": PROVISIONING_CLUSTER.kind},
        "resource": {"group": PROVISIONING_CLUSTER.group, "resource": PROVISIONING_CLUSTER.plural},
        "namespace": admin.namespace,
        "name": "a",
        "operation": "CREATE",
        "object": with_credential("theirs"),
        "userInfo": {"username": "mallory", "groups": ["system:masters"]},
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    plain = url[: url.index(reference_review.PATH)] + reference_review.PATH
    async with aiohttp.ClientSession() as session, session.post(plain, json=review, ssl=False) as answer:
        assert answer.status == 404, await answer.text()
