"""An ordinary user names objects of others in references; both engines refuse what the user may not use itself."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from tests.support.api import Api
from tests.support.judged import path, provisioned

CLUSTERS = path(PROVISIONING_CLUSTER)
RBAC = "rbac.authorization.k8s.io/v1"
EVERYTHING_OF_OURS = [
    {"apiGroups": ["provisioning.cattle.io", "rke-machine-config.cattle.io"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
]


async def let(admin: Api, name: str, user: str, rules: list[dict[str, Any]]) -> None:
    """Give a user these rights in the namespace."""
    await admin.create(f"{RBAC}/roles", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    await admin.create(f"{RBAC}/rolebindings", binding)


def secret(name: str, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": annotations}, "stringData": {"key": "value"}}


def reading(*names: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [*names], "verbs": ["get"]}


@pytest.fixture
async def admin(judged_admin: Api) -> Api:
    return await judged_admin.in_new_namespace()


@pytest.fixture
async def mallory(admin: Api) -> Api:
    """May write Clusters and create Secrets in the namespace, and read none of its Secrets."""
    await let(admin, "mallory", "mallory", EVERYTHING_OF_OURS)
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
    """The same with the test's namespace in values that name it."""
    if isinstance(obj, dict):
        return {key: in_namespace(value, namespace) for key, value in obj.items()}
    if isinstance(obj, list):
        return [in_namespace(value, namespace) for value in obj]
    return obj.replace("NAMESPACE", namespace) if isinstance(obj, str) else obj


@pytest.mark.xfail(strict=True, reason="references are not checked against the rights of their author")
@pytest.mark.parametrize("case", FOREIGN)
async def test_a_cluster_cannot_name_a_secret_that_its_author_may_not_read(admin: Api, mallory: Api, case: str) -> None:
    await admin.create("secrets", secret("theirs"))
    cluster, field = FOREIGN[case]
    answer = await mallory.post(mallory.at(CLUSTERS), in_namespace(cluster, admin.namespace))
    assert (answer.status, answer.reason) == (403, "Forbidden"), answer.text
    assert field in answer.message
    assert 'cannot get resource "secrets"' in answer.message


@pytest.mark.xfail(strict=True, reason="references are not checked against the rights of their author")
async def test_a_credential_of_another_namespace_needs_the_right_there(judged_admin: Api, mallory: Api) -> None:
    answer = await mallory.post(mallory.at(CLUSTERS), with_credential("cattle-global-data:theirs"))
    assert answer.status == 403, answer.text
    assert 'in the namespace "cattle-global-data"' in answer.message


@pytest.mark.xfail(strict=True, reason="annotations for sync are not checked against the rights of their author")
@pytest.mark.parametrize("mark", ["provisioning.cattle.io/sync", "provisioning.cattle.io/sync-bootstrap"])
async def test_a_secret_is_synced_only_into_clusters_that_its_author_may_change(admin: Api, mark: str) -> None:
    await let(admin, "guest", "guest", [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}])
    guest = admin.as_user("guest")
    await admin.create(CLUSTERS, provisioned())
    marks = {mark: "true", "rke.cattle.io/object-authorized-for-clusters": "one"}
    answer = await guest.post(guest.at("secrets"), secret("planted", **marks))
    assert answer.status == 403, answer.text
    assert 'cannot update resource "clusters"' in answer.message
