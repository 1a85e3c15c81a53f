"""References to objects of others: both engines reject what the user may not use directly."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from herder.api.capi.core import MUTATING_WEBHOOKS
from herder.api.capi.kinds import CLUSTER
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.references.approvals import APPROVED, REVIEW
from herder.gateway.webhooks import reference_review
from tests.conformance.admission.references import admin, mallory, reading, record, secret, with_credential
from tests.support.api import Api
from tests.support.manager.admission_servers import MANAGER, provisioning_cluster, resource_path
from tests.support.rbac import grant, revoke

__all__ = ["admin", "mallory"]

CLUSTERS = resource_path(PROVISIONING_CLUSTER)
OWNED_CLUSTER = [
    {"apiGroups": ["provisioning.cattle.io"], "resources": ["clusters"], "resourceNames": ["one"], "verbs": ["update"]}
]


def named(**rke_config: Any) -> dict[str, Any]:
    return provisioning_cluster(**rke_config)


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


@pytest.mark.parametrize("type_", ["rke.cattle.io/machine-plan", "rke.cattle.io/machine-state"])
async def test_an_annotation_makes_no_user_the_creator_of_a_secret_of_the_manager(
    admin: Api, mallory: Api, type_: str
) -> None:
    """The manager copies annotations of users to plan Secrets, and admission does not check the manager."""
    planted = secret("theirs", **{"field.cattle.io/creatorId": "mallory"})
    await admin.create("secrets", {**planted, "type": type_})
    answer = await mallory.post(mallory.at(CLUSTERS), FOREIGN["file on machines"][0])
    assert answer.status == 403, answer.text
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


async def creator_of_a_synced_secret(admin: Api) -> Api:
    """An owner of the Cluster `one`, into which the Secret `synced` is synced. Its creator keeps rights on a Secret."""
    await grant(admin, "creator", "creator", [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}])
    await grant(admin, "owner", "creator", OWNED_CLUSTER)
    creator = admin.as_user("creator")
    await admin.create(CLUSTERS, provisioning_cluster())
    marks = {"provisioning.cattle.io/sync": "true", "rke.cattle.io/object-authorized-for-clusters": "one"}
    await creator.create("secrets", secret("synced", **marks))
    return creator


async def test_a_former_owner_cannot_change_what_is_synced_into_the_cluster(admin: Api) -> None:
    creator = await creator_of_a_synced_secret(admin)
    url = creator.at("secrets", "synced")
    (await creator.patch(url, {"stringData": {"key": "while an owner"}})).expect(200)
    await revoke(admin, "owner", "creator", OWNED_CLUSTER)
    answer = await creator.patch(url, {"stringData": {"key": "afterwards"}})
    assert answer.status == 403, answer.text
    assert 'cannot update resource "clusters"' in answer.message
    assert (await creator.patch(url, {"data": {"another": "a2V5"}})).status == 403
    (await creator.patch(url, {"metadata": {"labels": {"content": "unchanged"}}})).expect(200)
    not_synced = {"metadata": {"annotations": {"provisioning.cattle.io/sync": None}}}
    (await creator.patch(url, {**not_synced, "stringData": {"key": "not synced"}})).expect(200)


async def test_the_creator_of_a_synced_secret_can_change_it_after_the_cluster_is_deleted(admin: Api) -> None:
    creator = await creator_of_a_synced_secret(admin)
    (await admin.delete(admin.at(CLUSTERS, "one"))).expect(200)
    await revoke(admin, "owner", "creator", OWNED_CLUSTER)
    (await creator.patch(creator.at("secrets", "synced"), {"stringData": {"key": "another"}})).expect(200)


@pytest.mark.parametrize(
    "case", ["cloud credential", "registry password", "registry key", "file on machines", "S3 credential"]
)
async def test_a_former_owner_cannot_change_a_secret_that_the_cluster_uses(admin: Api, case: str) -> None:
    """The creator of a cloud credential keeps rights on it. Its content could be a file on the cluster's machines."""
    await admin.create(CLUSTERS, provisioning_cluster())
    await grant(admin, "creator", "creator", [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}])
    await grant(admin, "owner", "creator", OWNED_CLUSTER)
    creator = admin.as_user("creator")
    await creator.create("secrets", secret("theirs", **{"field.cattle.io/creatorId": "creator"}))
    stored = await admin.get(admin.at(CLUSTERS, "one"))
    cluster = in_namespace(FOREIGN[case][0], admin.namespace)
    changed = {**stored.body, "spec": cluster["spec"]}
    (await creator.put(creator.at(CLUSTERS, "one"), changed)).expect(200)
    url = creator.at("secrets", "theirs")
    (await creator.patch(url, {"stringData": {"key": "while an owner"}})).expect(200)
    await revoke(admin, "owner", "creator", OWNED_CLUSTER)
    answer = await creator.patch(url, {"stringData": {"key": "afterwards"}})
    assert answer.status == 403, answer.text
    assert f"clusters.provisioning.cattle.io {admin.namespace}/one uses the Secret" in answer.message
    (await creator.patch(url, {"metadata": {"labels": {"content": "unchanged"}}})).expect(200)
    current = (await admin.get(admin.at(CLUSTERS, "one"))).body
    (await admin.put(admin.at(CLUSTERS, "one"), {**current, "spec": stored.body["spec"]})).expect(200)
    (await creator.patch(url, {"stringData": {"key": "not used"}})).expect(200)


@pytest.mark.parametrize("is_recreated", [False, True], ids=["same Secret", "recreated Secret"])
async def test_a_review_of_an_administrator_does_not_trust_the_creator_of_a_secret(
    admin: Api, is_recreated: bool
) -> None:
    """It approves all references again, but does not vouch for what a former owner writes later."""
    await admin.create(CLUSTERS, provisioning_cluster())
    await grant(admin, "creator", "creator", [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}])
    await grant(admin, "owner", "creator", OWNED_CLUSTER)
    creator, theirs = admin.as_user("creator"), secret("theirs", **{"field.cattle.io/creatorId": "creator"})
    await creator.create("secrets", theirs)
    stored = await admin.get(admin.at(CLUSTERS, "one"))
    cluster = in_namespace(FOREIGN["file on machines"][0], admin.namespace)
    (await creator.put(creator.at(CLUSTERS, "one"), {**stored.body, "spec": cluster["spec"]})).expect(200)
    await revoke(admin, "owner", "creator", OWNED_CLUSTER)
    if is_recreated:
        (await creator.delete(creator.at("secrets", "theirs"))).expect(200)
        await creator.create("secrets", theirs)
    (await admin.patch(admin.at(CLUSTERS, "one"), {"metadata": {"annotations": {REVIEW: "now"}}})).expect(200)
    answer = await creator.patch(creator.at("secrets", "theirs"), {"stringData": {"key": "afterwards"}})
    assert answer.status == 403, answer.text


async def test_an_administrator_who_renames_a_registry_does_not_trust_the_creator_of_its_password(admin: Api) -> None:
    await admin.create(CLUSTERS, provisioning_cluster())
    await grant(admin, "creator", "creator", [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}])
    await grant(admin, "owner", "creator", OWNED_CLUSTER)
    creator = admin.as_user("creator")
    await creator.create("secrets", secret("theirs", **{"field.cattle.io/creatorId": "creator"}))
    for author, host in ((creator, "first.example"), (admin, "second.example")):
        stored = (await admin.get(admin.at(CLUSTERS, "one"))).body
        spec = named(registries={"configs": {host: {"authConfigSecretName": "theirs"}}})["spec"]
        (await author.put(author.at(CLUSTERS, "one"), {**stored, "spec": spec})).expect(200)
    await revoke(admin, "owner", "creator", OWNED_CLUSTER)
    answer = await creator.patch(creator.at("secrets", "theirs"), {"stringData": {"key": "afterwards"}})
    assert answer.status == 403, answer.text


async def test_a_review_of_an_administrator_does_not_trust_the_creator_of_a_synced_secret(admin: Api) -> None:
    creator = await creator_of_a_synced_secret(admin)
    await revoke(admin, "owner", "creator", OWNED_CLUSTER)
    url = creator.at("secrets", "synced")
    (await admin.patch(url, {"metadata": {"annotations": {REVIEW: "now"}}})).expect(200)
    answer = await creator.patch(url, {"stringData": {"key": "afterwards"}})
    assert answer.status == 403, answer.text


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


# --- responses -------------------------------------------------------------------------------------------------------


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
