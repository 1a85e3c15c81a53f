"""Every field by which a user can make the manager read, use or change another object.

Extraction tolerates any input, because mutating admission runs before schema validation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from herder.api.capi import kinds as capi
from herder.api.capi.contract import reference_group
from herder.api.capi.names import authority_secret, kubeconfig_secret
from herder.api.capi.plurals import plural
from herder.api.inmemory.kinds import IN_MEMORY_CONTROL_PLANE
from herder.api.machines.kinds import CONFIG_GROUP, MACHINE_GROUP, driver_of, kinds_of
from herder.api.management import kinds as management
from herder.api.management.secret_sync import SYNC, SYNC_BOOTSTRAP, TARGET_NAME, TARGET_NAMESPACE
from herder.api.rke import kinds as rke
from herder.api.rke.names import AUTHORIZED_CLUSTERS
from herder.engine.meta.kinds import GroupKind, GroupResource, Kind, Object

SECRETS, CONFIG_MAPS = GroupResource("", "secrets"), GroupResource("", "configmaps")
READ, CHANGE = "get", "update"
"""Verbs that a reference requires: get for contents that are copied, update for objects that are used in place."""
USE = "use"
"""Verb on a NodeDriver whose machines run on the manager's host."""

SECRET_SCHEME = "secret://"
CREDENTIAL = "spec.common.cloudCredentialSecretName"
BOOTSTRAP_DATA = "spec.bootstrap.dataSecretName"
_CONFIG = ("spec", "bootstrap", "configRef")
NAME = "metadata.name"


class Target(NamedTuple):
    """The object that a reference names."""

    group: str
    resource: str
    namespace: str
    name: str

    def __str__(self) -> str:
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{GroupResource(self.group, self.resource)} {place}"


class FieldReference(NamedTuple):
    """A reference. `path` does not change when list entries are reordered; `field` is for messages.

    `context` is another field on which the trust in the reference depends. If it changes, the reference is reviewed
    again. `is_machine_config`: a node driver reads the target, and nothing else is done with it.
    """

    path: str
    target: Target
    verb: str
    field: str
    context: str = ""
    is_machine_config: bool = False

    @property
    def key(self) -> tuple[str, Target]:
        return self.path, self.target


Extract = Callable[[Object, str], Iterator[FieldReference]]
"""Yields the references of an object; the second argument is its namespace."""


def field_references(kind: GroupKind, obj: Object, namespace: str) -> list[FieldReference]:
    extract = _EXTRACT.get(kind) or (_of_driver_kind if kind.group == MACHINE_GROUP else None)
    return [*extract(obj, namespace)] if extract is not None else []


def implied_references(kind: GroupKind, obj: Object, namespace: str) -> list[FieldReference]:
    """Objects that belong to a new object by its name alone, if they exist."""
    name = _text(obj, "metadata", "name")
    if kind != capi.CLUSTER.group_kind or not name:
        return []
    secrets = [Target(*SECRETS, namespace, each) for each in (kubeconfig_secret(name), authority_secret(name))]
    found = [FieldReference(NAME, each, READ, NAME) for each in secrets]
    return [*found, *_named(management.PROVISIONING_CLUSTER, name, namespace, NAME)]


def secret_target(value: str, namespace: str) -> Target:
    """`name` in the object's own namespace, or `namespace:name`."""
    place, colon, name = value.partition(":")
    return Target(*SECRETS, place if colon else namespace, name if colon else value)


# --- untyped values -------------------------------------------------------------------------------------------------


def _at(obj: Any, *path: str) -> Any:
    for part in path:
        obj = obj.get(part) if isinstance(obj, Mapping) else None
    return obj


def _text(obj: Any, *path: str) -> str:
    value = _at(obj, *path)
    return value if isinstance(value, str) else ""


def _entries(obj: Any, *path: str) -> list[Any]:
    value = _at(obj, *path)
    return value if isinstance(value, list) else []


def _items(obj: Any, *path: str) -> list[tuple[str, Any]]:
    value = _at(obj, *path)
    return [*value.items()] if isinstance(value, Mapping) else []


# --- single references ----------------------------------------------------------------------------------------------


def _secret(value: str, namespace: str, path: str, field: str = "") -> Iterator[FieldReference]:
    if value:
        yield FieldReference(path, secret_target(value, namespace), READ, field or path)


def _own_secret(value: str, namespace: str, path: str, field: str = "") -> Iterator[FieldReference]:
    """A Secret in the object's own namespace; a colon is not a separator here."""
    if value:
        yield FieldReference(path, Target(*SECRETS, namespace, value), READ, field or path)


def _object(reference: Any, namespace: str, path: str) -> Iterator[FieldReference]:
    """A provider's object. Controllers look in the referrer's namespace, whatever namespace the reference names."""
    kind, name = _text(reference, "kind"), _text(reference, "name")
    if kind and name:
        group = reference_group({part: _text(reference, part) for part in ("apiGroup", "apiVersion")})
        yield FieldReference(path, Target(group, plural(kind.lower()), namespace, name), CHANGE, path)


def _named(kind: Kind, name: str, namespace: str, path: str) -> Iterator[FieldReference]:
    if name:
        place = namespace if kind.namespaced else ""
        yield FieldReference(path, Target(kind.group, kind.plural, place, name), CHANGE, path)


# --- provisioned clusters -------------------------------------------------------------------------------------------


def _of_provisioning_cluster(obj: Object, namespace: str) -> Iterator[FieldReference]:
    yield from _secret(_text(obj, "spec", "cloudCredentialSecretName"), namespace, "spec.cloudCredentialSecretName")
    config = _at(obj, "spec", "rkeConfig")
    for pool in _entries(config, "machinePools"):
        path = pool_path(_text(pool, "name"))
        yield from _secret(_text(pool, "cloudCredentialSecretName"), namespace, f"{path}.cloudCredentialSecretName")
        yield from _machine_config(_at(pool, "machineConfigRef"), namespace, f"{path}.machineConfigRef")
        yield from _config_fields(pool, namespace, f"{path}.dynamicSchemaSpec")
    yield from _object(_at(config, "infrastructureRef"), namespace, "spec.rkeConfig.infrastructureRef")
    yield from _configuration(config, namespace, "spec.rkeConfig")


def pool_path(name: str) -> str:
    return f"spec.rkeConfig.machinePools[{name}]"


def _machine_config(reference: Any, namespace: str, path: str) -> Iterator[FieldReference]:
    """Only a reference with this version, or none, is a config of a node driver; see `Pool.is_ours`."""
    kind, name = _text(reference, "kind"), _text(reference, "name")
    if _text(reference, "apiVersion") not in ("", f"{CONFIG_GROUP}/{VERSIONS[CONFIG_GROUP]}"):
        yield from _object(reference, namespace, path)
    elif kind and name:
        for each in _named(kinds_of(driver_of(kind)).config, name, namespace, path):
            yield each._replace(is_machine_config=True)


def _config_fields(pool: Any, namespace: str, path: str) -> Iterator[FieldReference]:
    """Machines get the fields of their config that this lists, so changing the list changes the machines."""
    if listed := _text(pool, "dynamicSchemaSpec"):
        digest = hashlib.sha256(listed.encode(errors="surrogatepass")).hexdigest()[:32]
        for each in _machine_config(_at(pool, "machineConfigRef"), namespace, path):
            if each.target.group == CONFIG_GROUP:
                yield each._replace(path=f"{path}[{digest}]")


def _configuration(config: Any, namespace: str, path: str) -> Iterator[FieldReference]:
    """References that provisioning Cluster and RKEControlPlane have in common."""
    for host, each in _items(config, "registries", "configs"):
        for part in ("authConfigSecretName", "tlsSecretName"):
            yield from _own_secret(_text(each, part), namespace, f"{path}.registries.configs[{host}].{part}")
    field = f"{path}.etcd.s3.cloudCredentialName"
    yield from _secret(_text(config, "etcd", "s3", "cloudCredentialName"), namespace, field)
    yield from _files(config, namespace, path)
    yield from _provider_configs(config, path)


def _files(config: Any, namespace: str, path: str) -> Iterator[FieldReference]:
    sources: Sequence[tuple[str, GroupResource]] = (("secret", SECRETS), ("configMap", CONFIG_MAPS))
    for index, entry in enumerate(_entries(config, "machineSelectorFiles")):
        for number, source in enumerate(_entries(entry, "fileSources")):
            for part, resource in sources:
                if name := _text(source, part, "name"):
                    key = f"{path}.machineSelectorFiles[].fileSources[].{part}.name"
                    field = f"{path}.machineSelectorFiles[{index}].fileSources[{number}].{part}.name"
                    yield FieldReference(key, Target(*resource, namespace, name), READ, field)


def _provider_configs(config: Any, path: str) -> Iterator[FieldReference]:
    """The only argument whose value may be the content of a Secret, in any namespace."""
    argument = "cloud-provider-config"
    values = [(f"{path}.machineGlobalConfig.{argument}", "", _text(config, "machineGlobalConfig", argument))]
    for index, entry in enumerate(_entries(config, "machineSelectorConfig")):
        field = f"{path}.machineSelectorConfig[{index}].config.{argument}"
        values.append((f"{path}.machineSelectorConfig[].config.{argument}", field, _text(entry, "config", argument)))
    for key, field, value in values:
        if value.startswith(SECRET_SCHEME):
            yield from _secret(value.removeprefix(SECRET_SCHEME), "", key, field)


def _of_control_plane(obj: Object, namespace: str) -> Iterator[FieldReference]:
    yield from _configuration(_at(obj, "spec"), namespace, "spec")
    yield from _cluster_name(obj, namespace)
    cluster = _text(obj, "spec", "managementClusterName")
    yield from _named(management.MANAGEMENT_CLUSTER, cluster, "", "spec.managementClusterName")


def _of_driver_kind(obj: Object, namespace: str) -> Iterator[FieldReference]:
    """Machines of node drivers and their templates."""
    value = _text(obj, "spec", "common", "cloudCredentialSecretName")
    yield from _secret(value, namespace, CREDENTIAL)
    value = _text(obj, "spec", "template", "spec", "common", "cloudCredentialSecretName")
    yield from _secret(value, namespace, f"spec.template.{CREDENTIAL}")


# --- Cluster API ----------------------------------------------------------------------------------------------------


def _of_cluster(obj: Object, namespace: str) -> Iterator[FieldReference]:
    for part in ("infrastructureRef", "controlPlaneRef"):
        yield from _object(_at(obj, "spec", part), namespace, f"spec.{part}")


def _of_machine(obj: Object, namespace: str) -> Iterator[FieldReference]:
    """The manager copies the name of the bootstrap data from the status of the bootstrap object, whose author admission
    does not know. The data is trusted only with that object: a user who removes the object names the data anew.
    """
    yield from _cluster_name(obj, namespace)
    config = " ".join(str(each.target) for each in _object(_at(obj, *_CONFIG), namespace, ""))
    for each in _machine_spec(_at(obj, "spec"), namespace, "spec"):
        yield each._replace(context=config) if each.path == BOOTSTRAP_DATA else each


def _of_health_check(obj: Object, namespace: str) -> Iterator[FieldReference]:
    yield from _cluster_name(obj, namespace)
    path = "spec.remediation.templateRef"
    yield from _object(_at(obj, "spec", "remediation", "templateRef"), namespace, path)


def _of_in_memory_control_plane(obj: Object, namespace: str) -> Iterator[FieldReference]:
    """The manager makes the Cluster own the template, so that it is deleted with the Cluster."""
    path = ("spec", "machineTemplate", "spec", "infrastructureRef")
    yield from _object(_at(obj, *path), namespace, ".".join(path))


def _of_machines(obj: Object, namespace: str) -> Iterator[FieldReference]:
    """Kinds that create Machines."""
    yield from _cluster_name(obj, namespace)
    yield from _machine_spec(_at(obj, "spec", "template", "spec"), namespace, "spec.template.spec")


def _machine_spec(spec: Any, namespace: str, path: str) -> Iterator[FieldReference]:
    yield from _object(_at(spec, "infrastructureRef"), namespace, f"{path}.infrastructureRef")
    yield from _object(_at(spec, "bootstrap", "configRef"), namespace, f"{path}.bootstrap.configRef")
    field = f"{path}.bootstrap.dataSecretName"
    yield from _own_secret(_text(spec, "bootstrap", "dataSecretName"), namespace, field)


def _cluster_name(obj: Object, namespace: str) -> Iterator[FieldReference]:
    yield from _named(capi.CLUSTER, _text(obj, "spec", "clusterName"), namespace, "spec.clusterName")


# --- Secrets synced to clusters -------------------------------------------------------------------------------------


def _of_secret(obj: Object, namespace: str) -> Iterator[FieldReference]:
    marks = _at(obj, "metadata", "annotations")
    if not (_text(marks, SYNC) or _text(marks, SYNC_BOOTSTRAP)):
        return
    own = _text(obj, "metadata", "name")
    path = sync_path(_text(marks, TARGET_NAMESPACE) or namespace, _text(marks, TARGET_NAME) or own)
    for name in _text(marks, AUTHORIZED_CLUSTERS).split(","):
        yield from _named(management.PROVISIONING_CLUSTER, name.strip(), namespace, path)


def sync_path(namespace: str, name: str) -> str:
    """The target in the cluster is part of the reference: edit access to the Secret alone cannot redirect it."""
    return f"metadata.annotations[{AUTHORIZED_CLUSTERS}] to {namespace}/{name}"


_EXTRACT: Mapping[GroupKind, Extract] = {
    management.PROVISIONING_CLUSTER.group_kind: _of_provisioning_cluster,
    rke.CONTROL_PLANE.group_kind: _of_control_plane,
    rke.BOOTSTRAP.group_kind: _cluster_name,
    rke.BOOTSTRAP_TEMPLATE.group_kind: _cluster_name,
    capi.CLUSTER.group_kind: _of_cluster,
    capi.MACHINE.group_kind: _of_machine,
    capi.MACHINE_SET.group_kind: _of_machines,
    capi.MACHINE_DEPLOYMENT.group_kind: _of_machines,
    capi.MACHINE_POOL.group_kind: _of_machines,
    capi.MACHINE_HEALTH_CHECK.group_kind: _of_health_check,
    IN_MEMORY_CONTROL_PLANE.group_kind: _of_in_memory_control_plane,
    capi.SECRET.group_kind: _of_secret,
}

KINDS: Sequence[Kind] = (
    management.PROVISIONING_CLUSTER,
    rke.CONTROL_PLANE,
    rke.BOOTSTRAP,
    rke.BOOTSTRAP_TEMPLATE,
    capi.CLUSTER,
    capi.MACHINE,
    capi.MACHINE_SET,
    capi.MACHINE_DEPLOYMENT,
    capi.MACHINE_POOL,
    capi.MACHINE_HEALTH_CHECK,
    IN_MEMORY_CONTROL_PLANE,
)
"""Kinds with references, besides Secrets and kinds of node drivers."""

DRIVER_GROUPS = (MACHINE_GROUP, CONFIG_GROUP)

VERSIONS: Mapping[str, str] = {
    "": "v1",
    CONFIG_GROUP: "v1",
    MACHINE_GROUP: "v1",
    rke.GROUP: rke.VERSION,
    capi.GROUP: capi.VERSION,
    management.GROUP: management.VERSION,
    management.PROVISIONING_CLUSTER.group: management.PROVISIONING_CLUSTER.version,
}
"""By group: the version in which a target is read. Targets of other groups are approved by name only."""
