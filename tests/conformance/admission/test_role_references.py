"""Every default role with every reference field, on both engines: a user may reference what its role may use.

Every user has the permissions that `role_table.txt` lists for its role, and may create every kind that has references.
So only the reference check can reject, and it must agree with the authorizer about every target.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from herder.api.capi import kinds as capi
from herder.api.inmemory.crds import CRDS as IN_MEMORY_CRDS
from herder.api.inmemory.kinds import IN_MEMORY_CONTROL_PLANE
from herder.api.machines.kinds import kinds_of
from herder.api.management import kinds as management
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.secret_sync import SYNC, SYNC_BOOTSTRAP
from herder.api.references.catalogue import KINDS, FieldReference, field_references
from herder.api.rke import kinds as rke
from herder.api.rke.names import AUTHORIZED_CLUSTERS
from herder.engine.meta.kinds import Kind, Object
from tests.conformance.objects import definition, ensure_defined
from tests.support.api import Api
from tests.support.manager.admission_servers import provisioning_cluster, resource_path
from tests.support.rbac import grant, grant_everywhere
from tests.unit.api.capi.admission import objects
from tests.unit.api.capi.admission.objects import changed

TABLE = Path(__file__).parents[2] / "interop" / "authorization" / "role_table.txt"
ALL_USERS = "system:authenticated"
PLACES = ("fleet-default", "team")
DRIVER = kinds_of("shed")
ROWS = [tuple(part.strip() for part in line.split("|")) for line in TABLE.read_text().splitlines()]
ROLES = list(dict.fromkeys(role for role, *_ in ROWS))


def with_spec(kind: Kind, spec: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "one"}, "spec": spec}


def secret(**annotations: str) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one", "annotations": annotations}}


def reference(kind: str) -> Object:
    return {"apiGroup": "infrastructure.example.com", "kind": kind, "name": "theirs"}


def configurations(*resource_path: str) -> dict[str, Object]:
    """Fields that `rkeConfig` of a provisioning Cluster and the spec of an RKEControlPlane share."""
    config = "secret://PLACE:theirs"
    at = ".".join(resource_path)
    return {
        f"{at}.registries.configs[a.b].authConfigSecretName": {
            "registries": {"configs": {"a.b": {"authConfigSecretName": "theirs"}}}
        },
        f"{at}.registries.configs[a.b].tlsSecretName": {
            "registries": {"configs": {"a.b": {"tlsSecretName": "theirs"}}}
        },
        f"{at}.etcd.s3.cloudCredentialName": {"etcd": {"s3": {"cloudCredentialName": "theirs"}}},
        f"{at}.machineSelectorFiles[].fileSources[].secret.name": {
            "machineSelectorFiles": [{"fileSources": [{"secret": {"name": "theirs"}}]}]
        },
        f"{at}.machineSelectorFiles[].fileSources[].configMap.name": {
            "machineSelectorFiles": [{"fileSources": [{"configMap": {"name": "theirs"}}]}]
        },
        f"{at}.machineGlobalConfig.cloud-provider-config": {"machineGlobalConfig": {"cloud-provider-config": config}},
        f"{at}.machineSelectorConfig[].config.cloud-provider-config": {
            "machineSelectorConfig": [{"config": {"cloud-provider-config": config}}]
        },
    }


RKE2 = {"spec.kubernetesVersion": "v1.34.1+rke2r1"}  # K3s has no cloud-provider-config
SHEDS = {"kind": DRIVER.config.kind, "name": "theirs"}
CONTROL_PLANE = {"clusterName": "", "managementClusterName": "", "kubernetesVersion": "v1.34.1+k3s1"}
MACHINE_FIELDS: dict[str, Any] = {
    "infrastructureRef": reference("Machine"),
    "bootstrap.configRef": reference("Config"),
    "bootstrap.dataSecretName": "theirs",
}


def _machine_cases(kind: Kind, valid: Object, spec: str) -> dict[tuple[Kind, str], Object]:
    cases = {(kind, "spec.clusterName"): valid}
    for field, value in MACHINE_FIELDS.items():
        cases[kind, f"{spec}.{field}"] = changed(valid, {f"{spec}.{field}": value})
    return cases


CASES: Mapping[tuple[Kind, str], Object] = {
    (management.PROVISIONING_CLUSTER, "spec.cloudCredentialSecretName"): changed(
        provisioning_cluster(), {"spec.cloudCredentialSecretName": "theirs"}
    ),
    (management.PROVISIONING_CLUSTER, "spec.rkeConfig.machinePools[a].cloudCredentialSecretName"): provisioning_cluster(
        machinePools=[{"name": "a", "machineConfigRef": SHEDS, "cloudCredentialSecretName": "theirs"}]
    ),
    (management.PROVISIONING_CLUSTER, "spec.rkeConfig.machinePools[a].machineConfigRef"): provisioning_cluster(
        machinePools=[{"name": "a", "machineConfigRef": SHEDS}]
    ),
    (management.PROVISIONING_CLUSTER, "spec.rkeConfig.infrastructureRef"): provisioning_cluster(
        infrastructureRef=reference("Cluster")
    ),
    **{
        (management.PROVISIONING_CLUSTER, field): changed(provisioning_cluster(**fields), RKE2)
        for field, fields in configurations("spec", "rkeConfig").items()
    },
    **{
        (rke.CONTROL_PLANE, field): with_spec(rke.CONTROL_PLANE, CONTROL_PLANE | fields)
        for field, fields in configurations("spec").items()
    },
    (rke.CONTROL_PLANE, "spec.managementClusterName"): with_spec(
        rke.CONTROL_PLANE, CONTROL_PLANE | {"managementClusterName": "c-theirs"}
    ),
    (rke.CONTROL_PLANE, "spec.clusterName"): with_spec(rke.CONTROL_PLANE, CONTROL_PLANE | {"clusterName": "theirs"}),
    (rke.BOOTSTRAP, "spec.clusterName"): with_spec(rke.BOOTSTRAP, {"clusterName": "theirs"}),
    (rke.BOOTSTRAP_TEMPLATE, "spec.clusterName"): with_spec(
        rke.BOOTSTRAP_TEMPLATE, {"clusterName": "theirs", "template": {"spec": {}}}
    ),
    **{
        (capi.CLUSTER, f"spec.{field}"): changed(objects.CLUSTER, {f"spec.{field}": reference("Cluster")})
        for field in ("infrastructureRef", "controlPlaneRef")
    },
    **_machine_cases(capi.MACHINE, objects.MACHINE, "spec"),
    **_machine_cases(capi.MACHINE_SET, objects.MACHINE_SET, "spec.template.spec"),
    **_machine_cases(capi.MACHINE_DEPLOYMENT, objects.MACHINE_DEPLOYMENT, "spec.template.spec"),
    **_machine_cases(capi.MACHINE_POOL, objects.MACHINE_POOL, "spec.template.spec"),
    (IN_MEMORY_CONTROL_PLANE, "spec.machineTemplate.spec.infrastructureRef"): with_spec(
        IN_MEMORY_CONTROL_PLANE,
        {"version": "v1.35.0", "machineTemplate": {"spec": {"infrastructureRef": reference("Machine")}}},
    ),
    (capi.MACHINE_HEALTH_CHECK, "spec.clusterName"): objects.MACHINE_HEALTH_CHECK,
    (capi.MACHINE_HEALTH_CHECK, "spec.remediation.templateRef"): changed(
        objects.MACHINE_HEALTH_CHECK,
        {
            "spec.remediation.templateRef": {
                "apiVersion": "infrastructure.example.com/v1",
                "kind": "RemediationTemplate",
                "name": "theirs",
            }
        },
    ),
    **{
        (capi.SECRET, f"metadata.annotations[{AUTHORIZED_CLUSTERS}] to PLACE/one by {mark}"): secret(
            **{mark: "true", AUTHORIZED_CLUSTERS: "theirs"}
        )
        for mark in (SYNC, SYNC_BOOTSTRAP)
    },
    (DRIVER.machine, "spec.common.cloudCredentialSecretName"): with_spec(
        DRIVER.machine, {"common": {"cloudCredentialSecretName": "theirs"}}
    ),
    (DRIVER.template, "spec.template.spec.common.cloudCredentialSecretName"): with_spec(
        DRIVER.template, {"template": {"spec": {"common": {"cloudCredentialSecretName": "theirs"}}}}
    ),
}  # fmt: skip


def in_place(value: Any, place: str) -> Any:
    """Return the object with the namespace in values that contain one."""
    if isinstance(value, dict):
        return {key: in_place(each, place) for key, each in value.items()}
    if isinstance(value, list):
        return [in_place(each, place) for each in value]
    return value.replace("PLACE", place) if isinstance(value, str) else value


def references_of(kind: Kind, field: str, place: str) -> list[FieldReference]:
    return field_references(kind.group_kind, in_place(CASES[kind, field], place), place)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].kind} {case[1]}")
def test_each_case_contains_its_reference(case: tuple[Kind, str]) -> None:
    kind, field = case
    wanted = field.partition(" by ")[0].replace("PLACE", "team")
    assert wanted in {found.path for found in references_of(kind, field, "team")}


def test_every_kind_with_references_has_cases() -> None:
    assert {kind for kind, _ in CASES} == {*KINDS, capi.SECRET, DRIVER.machine, DRIVER.template}


# --- users with the rights of the default roles ---------------------------------------------------------------------


def user_of(role: str) -> str:
    return "r-" + role.replace(" ", "-")


def rule_of(what: str, verbs: str) -> Object:
    if what.startswith("URL "):
        return {"nonResourceURLs": [what.removeprefix("URL ")], "verbs": verbs.split()}
    resource, _, name = what.partition(" ")
    plural, _, group = resource.partition(".")
    return {
        "apiGroups": [group],
        "resources": [plural],
        "verbs": verbs.split(),
        **({"resourceNames": [name]} if name else {}),
    }


async def grant_role(admin: Api, role: str) -> None:
    by_place: dict[str, list[Object]] = {}
    for owner, place, what, verbs in ROWS:
        if owner == role:
            by_place.setdefault("" if place == "*" else place, []).append(rule_of(what, verbs))
    for place, rules in by_place.items():
        if place in ("", *PLACES):
            give, api = (grant, admin.in_namespace(place)) if place else (grant_everywhere, admin)
            await give(api, user_of(role), user_of(role), rules)
    writing = [{"apiGroups": [kind.group], "resources": [kind.plural], "verbs": ["create"]} for kind, _ in CASES]
    for place in PLACES:
        await grant(admin.in_namespace(place), f"{user_of(role)}-writes", user_of(role), writing)


UNCHECKED = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINED = (rke.CONTROL_PLANE, rke.BOOTSTRAP, rke.BOOTSTRAP_TEMPLATE, DRIVER.machine, DRIVER.template, DRIVER.config)


async def create_targets(admin: Api) -> None:
    """Create the targets in the namespace: a dry run may reference a missing object if its author could create it."""
    theirs = {"metadata.name": "theirs"}
    for resource in ("secrets", "configmaps"):
        await admin.create(resource, {"metadata": {"name": "theirs"}})
    for name in ("theirs", "prod"):
        await admin.create(resource_path(capi.CLUSTER), changed(objects.CLUSTER, {"metadata.name": name}))
    await admin.create(resource_path(management.PROVISIONING_CLUSTER), changed(provisioning_cluster(), theirs))
    await admin.create(resource_path(DRIVER.config), changed(with_spec(DRIVER.config, {}), theirs))


@pytest.fixture(scope="module")
async def admin(admission_admin: Api) -> Api:
    for kind in DEFINED:
        await ensure_defined(admission_admin, definition(kind.group, kind.plural, kind.kind, UNCHECKED))
    for kind, crds in ((management.MANAGEMENT_CLUSTER, MANAGEMENT_CRDS), (IN_MEMORY_CONTROL_PLANE, IN_MEMORY_CRDS)):
        name = f"{kind.plural}.{kind.group}"
        await ensure_defined(admission_admin, next(crd for crd in crds if crd["metadata"]["name"] == name))
    theirs = changed(with_spec(management.MANAGEMENT_CLUSTER, {}), {"metadata.name": "c-theirs"})
    await admission_admin.create_cluster(resource_path(management.MANAGEMENT_CLUSTER), theirs)
    for place in PLACES:
        await admission_admin.create_cluster("namespaces", {"metadata": {"name": place}})
        await create_targets(admission_admin.in_namespace(place))
    for role in ROLES:
        await grant_role(admission_admin, role)
    return admission_admin


async def may_use(admin: Api, role: str, found: FieldReference) -> bool:
    """Return the authorizer's decision."""
    group, resource, namespace, name = found.target
    attributes = {"verb": found.verb, "group": group, "resource": resource, "namespace": namespace, "name": name}
    spec = {"user": user_of(role), "groups": [ALL_USERS], "resourceAttributes": attributes}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = await admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer.expect(201)["status"]["allowed"])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("role", ROLES)
async def test_users_can_reference_only_what_their_role_allows(admin: Api, role: str, place: str) -> None:
    user = admin.in_namespace(place).as_user(user_of(role), ALL_USERS)

    async def attempt(kind: Kind, field: str) -> str:
        lacking = [each for each in references_of(kind, field, place) if not await may_use(admin, role, each)]
        obj = in_place(CASES[kind, field], place)
        answer = await user.post(user.at(resource_path(kind) if kind.group else kind.plural) + "?dryRun=All", obj)
        if lacking:
            rejected = answer.status == 403 and any(f"{each.field}: " in answer.message for each in lacking)
            return "" if rejected else f"{kind.kind} {field}: {answer.status} {answer.text}"
        return "" if answer.status == 201 else f"{kind.kind} {field} (allowed): {answer.status} {answer.text}"

    wrong = await asyncio.gather(*(attempt(kind, field) for kind, field in CASES))
    assert [each for each in wrong if each] == []
