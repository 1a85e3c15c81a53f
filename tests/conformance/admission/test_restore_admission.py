"""Restores of a snapshot with its version and configuration: both engines apply them with the rights of the author."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.references.approvals import REVIEW
from herder.api.rke.cluster_spec import encode_spec
from herder.api.rke.etcd import restore
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from tests.conformance.admission.references import admin, mallory, record, secret
from tests.support.api import Api
from tests.support.builders import new_manifest
from tests.support.manager.admission_servers import provisioning_cluster, resource_path
from tests.support.rbac import grant

__all__ = ["admin", "mallory"]

CLUSTERS, SNAPSHOTS, PLANES = map(resource_path, (PROVISIONING_CLUSTER, ETCD_SNAPSHOT, CONTROL_PLANE))
OLD, NEW = "v1.33.5+k3s1", "v1.34.1+k3s1"
REGISTRIES = {"configs": {"example.com": {"authConfigSecretName": "theirs"}}}
OLD_CONFIG: dict[str, Any] = {
    "machineGlobalConfig": {"disable": ["traefik"]},
    "machinePools": [{"name": "old", "quantity": 9}],
    "machineSelectorFiles": [{"fileSources": [{"secret": {"name": "theirs"}}]}],
    "etcd": {"s3": {"bucket": "elsewhere", "cloudCredentialName": "theirs"}},
}


def saved(version: str = OLD, **config: Any) -> str:
    return encode_spec({"kubernetesVersion": version, "rkeConfig": {**OLD_CONFIG, **config}})


async def create(api: Api, encoded: str, *, known: bool = True, of: str = "one", approved: Sequence[str] = ()) -> None:
    """A cluster of the new version, a snapshot with this copy of the spec, and the digests that the manager knows.

    `approved`: UIDs of the objects that the cluster was allowed to reference.
    """
    await api.create(CLUSTERS, provisioning_cluster(upgradeStrategy={"workerConcurrency": "2"}))
    metadata = base64.b64encode(json.dumps({restore.SPEC_KEY: encoded}).encode()).decode() if encoded else ""
    snapshot = new_manifest(ETCD_SNAPSHOT, "saved", api.namespace, spec={"clusterName": of})
    await api.create(SNAPSHOTS, {**snapshot, "snapshotFile": {"metadata": metadata}})
    spec = {"kubernetesVersion": NEW, "clusterName": "one", "managementClusterName": "c-one"}
    await api.create(PLANES, new_manifest(CONTROL_PLANE, "one", api.namespace, spec=spec))
    history = {"status": {"specHistory": [restore.digest(encoded)] if known else [], "approvedObjects": [*approved]}}
    (await api.patch(f"{api.at(PLANES, 'one')}/status", history)).expect(200)


def request(mode: str, generation: int = 1, name: str = "saved", **spec: Any) -> dict[str, Any]:
    wanted = {"generation": generation, "name": name, "restoreRKEConfig": mode}
    return {"spec": {"rkeConfig": {"etcdSnapshotRestore": wanted}, **spec}}


async def patch(api: Api, body: dict[str, Any]) -> Any:
    return await api.patch(api.at(CLUSTERS, "one"), body)


@pytest.mark.parametrize("mode", ["none", "kubernetesVersion", "all"])
async def test_a_restore_changes_the_fields_of_its_mode(admin: Api, mode: str) -> None:
    await create(admin, saved())
    answer = (await patch(admin, request(mode))).expect(200)
    spec = answer["spec"]
    assert spec["kubernetesVersion"] == (NEW if mode == "none" else OLD)
    config = spec["rkeConfig"]
    assert config.get("machineGlobalConfig") == ({"disable": ["traefik"]} if mode == "all" else None)
    assert config.get("upgradeStrategy") == (None if mode == "all" else {"workerConcurrency": "2"})
    assert not config.get("machinePools")
    assert "machineSelectorFiles" not in config
    assert "etcd" not in config
    later = (await patch(admin, {"metadata": {"labels": {"a": "b"}}})).expect(200)
    assert later["spec"] == spec, "the request is applied once"


async def test_the_author_needs_rights_on_what_the_restored_spec_references(admin: Api, mallory: Api) -> None:
    theirs = await admin.create("secrets", secret("theirs"))
    await create(admin, saved(registries=REGISTRIES), approved=[theirs["metadata"]["uid"]])
    answer = await patch(mallory, request("all"))
    assert (answer.status, answer.reason) == (403, "Forbidden"), answer.text
    assert "spec.rkeConfig.registries.configs[example.com].authConfigSecretName" in answer.message
    (await patch(mallory, request("kubernetesVersion"))).expect(200)
    approved = (await patch(admin, request("all", generation=2))).expect(200)
    recorded = {each["name"]: each["author"] for each in record(approved) or ()}
    assert recorded.keys() == {"theirs"}
    assert recorded["theirs"] != "mallory"


async def test_a_restore_does_not_trust_the_creator_of_a_secret_that_it_references(admin: Api) -> None:
    """A former owner, who has named it. The administrator who restores the snapshot does not see the reference."""
    await grant(admin, "creator", "creator", [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}])
    creator = admin.as_user("creator")
    own = await creator.create("secrets", secret("theirs", **{"field.cattle.io/creatorId": "creator"}))
    await create(admin, saved(registries=REGISTRIES), approved=[own["metadata"]["uid"]])
    (await patch(admin, request("all"))).expect(200)
    answer = await creator.patch(creator.at("secrets", "theirs"), {"stringData": {"key": "afterwards"}})
    assert answer.status == 403, answer.text


@pytest.mark.parametrize("is_recreated", [True, False], ids=["recreated", "deleted"])
async def test_a_restored_spec_names_no_object_of_another_user(admin: Api, is_recreated: bool) -> None:
    """A user names an own Secret, removes the field, and deletes the Secret. Another user creates one of that name. An
    administrator who restores the snapshot sees neither."""
    own = await admin.create("secrets", secret("theirs"))
    await create(admin, saved(registries=REGISTRIES), approved=[own["metadata"]["uid"]])
    (await admin.delete(admin.at("secrets", "theirs"))).expect(200)
    if is_recreated:
        own = await admin.create("secrets", secret("theirs"))
    answer = await patch(admin, request("all"))
    assert (answer.status, answer.reason) == (403, "Forbidden"), answer.text
    assert "secrets " in answer.message
    assert "/theirs is not the object that the restored spec had referenced, or no longer exists" in answer.message
    (await patch(admin, request("kubernetesVersion"))).expect(200)
    (await patch(admin, {"metadata": {"annotations": {REVIEW: "earlier"}}})).expect(200)
    removed = await patch(admin, {**request("all"), "metadata": {"annotations": {REVIEW: None}}})
    assert removed.status == 403, "who replaces the object without the annotation requests no review"
    reviewed = {**request("all", generation=2), "metadata": {"annotations": {REVIEW: "checked"}}}
    approved = (await patch(admin, reviewed)).expect(200)
    (found,) = record(approved) or ()
    assert found.get("uid", "") == (own["metadata"]["uid"] if is_recreated else "")


async def test_a_restore_binds_no_reference_that_its_author_writes(admin: Api) -> None:
    await admin.create("secrets", secret("ours"))
    await create(admin, saved())
    body = request("all")
    body["spec"]["rkeConfig"]["etcd"] = {"s3": {"bucket": "ours", "cloudCredentialName": "ours"}}
    (found,) = record((await patch(admin, body)).expect(200)) or ()
    assert found["name"] == "ours"


REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "forged": (saved(), {"known": False}, "restoreRKEConfig", "the manager does not know the copy of the spec"),
    "without a copy": ("", {}, "restoreRKEConfig", "has no copy of the spec"),
    "of another cluster": (saved(), {"of": "two"}, "name", "this cluster has no such snapshot"),
    "of another distribution": (saved("v1.33.5+rke2r1"), {}, "restoreRKEConfig", "cannot be changed"),
    "before v1.25": (saved("v1.24.9+k3s1"), {}, "restoreRKEConfig", "clusters of v1.25 or later"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_snapshot_that_cannot_be_restored_is_refused(admin: Api, case: str) -> None:
    encoded, options, field, message = REFUSED[case]
    await create(admin, encoded, **options)
    answer = await patch(admin, request("all"))
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
    assert [found for _, found, _ in answer.causes] == [f"spec.rkeConfig.etcdSnapshotRestore.{field}"]
    assert message in answer.message


async def test_only_a_restore_lowers_the_version_of_a_cluster(admin: Api) -> None:
    await create(admin, saved())
    url = admin.at(CLUSTERS, "one")
    generation = (await admin.get(url)).body["metadata"]["generation"]
    updated = {"type": "Updated", "status": "True"}
    status = {"status": {"observedGeneration": generation, "conditions": [updated]}}
    (await admin.patch(f"{url}/status", status)).expect(200)
    answer = await patch(admin, {"spec": {"kubernetesVersion": OLD}})
    assert answer.status == 422, answer.text
    answer = await patch(admin, request("none", kubernetesVersion=OLD))
    assert answer.status == 422, answer.text
    chosen = (await patch(admin, request("kubernetesVersion", kubernetesVersion="v1.33.1+k3s1"))).expect(200)
    assert chosen["spec"]["kubernetesVersion"] == OLD, "not the version that the author wrote"


async def test_a_user_without_rights_on_snapshots_restores_those_of_the_own_cluster(admin: Api) -> None:
    await create(admin, saved())
    rule = {"apiGroups": [PROVISIONING_CLUSTER.group], "resources": ["clusters"], "verbs": ["get", "patch", "update"]}
    await grant(admin, "owner", "owner", [rule])
    assert (await patch(admin.as_user("owner"), request("all"))).expect(200)["spec"]["kubernetesVersion"] == OLD


FOREIGN = (
    "absent",
    "theirs",
    "elsewhere",
    "one/saved",
    "../etcdsnapshots/saved",
    "saved%2f..",
    "SAVED",
    "saved?x=y",
    "",
)


@pytest.mark.parametrize("name", FOREIGN)
async def test_snapshots_of_others_are_refused_like_those_that_do_not_exist(admin: Api, name: str) -> None:
    """The owner of a cluster names snapshots by guessing. Admission reads them with the rights of the manager."""
    await create(admin, saved())
    theirs = new_manifest(ETCD_SNAPSHOT, "theirs", admin.namespace, spec={"clusterName": "two"})
    metadata = base64.b64encode(json.dumps({restore.SPEC_KEY: saved()}).encode()).decode()
    await admin.create(SNAPSHOTS, {**theirs, "snapshotFile": {"metadata": metadata}})
    other = await admin.in_new_namespace()
    elsewhere = new_manifest(ETCD_SNAPSHOT, "elsewhere", other.namespace, spec={"clusterName": "one"})
    await other.create(SNAPSHOTS, {**elsewhere, "snapshotFile": {"metadata": metadata}})
    rule = {"apiGroups": [PROVISIONING_CLUSTER.group], "resources": ["clusters"], "verbs": ["get", "patch", "update"]}
    await grant(admin, "owner", "owner", [rule])
    for mode in ("all", "kubernetesVersion"):
        answer = await patch(admin.as_user("owner"), request(mode, name=name))
        assert answer.status == 422, answer.text
        assert [found for _, found, _ in answer.causes] == ["spec.rkeConfig.etcdSnapshotRestore.name"]
        assert "this cluster has no such snapshot" in answer.message
    assert (await admin.get(admin.at(CLUSTERS, "one"))).body["spec"]["kubernetesVersion"] == NEW


async def test_a_snapshot_that_was_replaced_after_the_request_is_not_approved_by_it(admin: Api) -> None:
    """The same request applies once: what the name stands for later changes nothing, and a new request is checked."""
    await create(admin, saved())
    (await patch(admin, request("all"))).expect(200)
    (await admin.delete(admin.at(SNAPSHOTS, "saved"))).expect(200)
    forged = base64.b64encode(json.dumps({restore.SPEC_KEY: saved("v1.33.9+k3s1")}).encode()).decode()
    replaced = new_manifest(ETCD_SNAPSHOT, "saved", admin.namespace, spec={"clusterName": "one"})
    await admin.create(SNAPSHOTS, {**replaced, "snapshotFile": {"metadata": forged}})
    kept = (await patch(admin, request("all"))).expect(200)
    assert kept["spec"]["kubernetesVersion"] == OLD
    answer = await patch(admin, request("all", generation=2))
    assert answer.status == 422, answer.text
    assert "the manager does not know the copy of the spec" in answer.message
