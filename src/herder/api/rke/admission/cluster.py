"""Admission of a provisioning Cluster. Only changed fields are validated, so that an object from elsewhere with an
invalid field can still be changed in other places.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from herder.api.capi.admission.total import Rule, problems
from herder.api.capi.admission.values import count_values, section, text, value, with_value
from herder.api.capi.conditions import find
from herder.api.capi.names import annotations_of
from herder.api.rke.admission import config, operations, pools
from herder.api.rke.admission.fields import refuse_unsupported
from herder.api.rke.admission.paths import PATH, RKE
from herder.api.rke.distributions import release_of, skip_error, version_of
from herder.api.rke.etcd.restore import restores_spec
from herder.api.rke.node.install import BadVariable, checked_directory
from herder.api.rke.operations import RESTORE
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, forbidden_field, invalid_value, required, too_many
from herder.engine.meta.kinds import Object

MAX_VALUES = 20_000
_ALLOW_SCHEMA_DROP = "provisioning.cattle.io/allow-dynamic-schema-drop"


def default(obj: Object, old: Object | None) -> Object:
    """Keep dynamicSchemaSpec of existing machine pools if a client that does not know the field drops it.

    Without it, the next version of the driver would replace the pool's machines.
    """
    pools_ = value(obj, *RKE, "machinePools")
    if old is None or not isinstance(pools_, list) or annotations_of(obj).get(_ALLOW_SCHEMA_DROP) == "true":
        return obj
    schemas = {text(pool, "name"): text(pool, "dynamicSchemaSpec") for pool in pools.listed(old)}
    kept = [_with_schema(pool, schemas) for pool in pools_]
    return obj if kept == pools_ else with_value(obj, kept, *RKE, "machinePools")


def _with_schema(pool: Any, schemas: dict[str, str]) -> Any:
    if not isinstance(pool, dict) or pool.get("dynamicSchemaSpec") or not schemas.get(text(pool, "name")):
        return pool
    return {**pool, "dynamicSchemaSpec": schemas[text(pool, "name")]}


def validate(obj: Object, old: Object | None) -> list[FieldError]:
    if too_large := problems(_number_of_values, obj, old, "spec"):
        return too_large
    if value(obj, *RKE) is None:
        return [*_origin_unchanged(obj, old), *problems(refuse_unsupported, obj, old, "spec")]
    return [problem for path, rule in _RULES for problem in problems(rule, obj, old, path)]


def _number_of_values(obj: Object, old: Object | None) -> Iterator[FieldError]:
    """Limit the number of values, because every controller of the cluster reads the whole spec on the event loop."""
    before = count_values(old.get("spec"), sys.maxsize) if old is not None else 0
    count = count_values(obj.get("spec"), max(before, MAX_VALUES))
    if count > max(before, MAX_VALUES):
        yield too_many("spec", count, MAX_VALUES)


def _origin_unchanged(obj: Object, old: Object | None) -> Iterator[FieldError]:
    if old is not None and (value(old, *RKE) is None) != (value(obj, *RKE) is None):
        yield forbidden_field(PATH, "an imported cluster cannot become a provisioned one, nor vice versa")


def _name(obj: Object, old: Object | None) -> Iterator[FieldError]:
    """The name must be a DNS label, because all objects of the cluster carry it as a label."""
    name = text(obj, "metadata", "name")
    if old is None and name:
        for complaint in names.dns1123_label(name):
            yield invalid_value("metadata.name", name, complaint)


def _version(obj: Object, old: Object | None) -> Iterator[FieldError]:
    version, before = (text(each, "spec", "kubernetesVersion") for each in (obj, old or {}))
    if not version and before:
        yield required("spec.kubernetesVersion", f"cannot be removed; the current version is {before}")
    if not version or version == before:
        return
    desired, current = version_of(version), version_of(before)
    if desired is None or desired.suffix:
        wanted = "must be a version with its distribution, such as v1.34.1+k3s1 (or +rke2r1, +kubeadm1, +herder1)"
        yield invalid_value("spec.kubernetesVersion", version, wanted)
    elif current is not None and desired.facts != current.facts:
        message = f"the distribution of {before} cannot be changed; create another cluster instead"
        yield invalid_value("spec.kubernetesVersion", version, message)
    elif _restores_version(obj, old):
        return
    elif (known_release := release_of(before)) and (problem := skip_error(known_release, version, annotations_of(obj))):
        yield invalid_value("spec.kubernetesVersion", version, problem)
    elif current is not None and desired.release < current.release and _is_up_to_date(old or {}):
        message = f"is lower than {before}, which the cluster has; a cluster cannot be downgraded"
        yield invalid_value("spec.kubernetesVersion", version, message)


def _restores_version(obj: Object, old: Object | None) -> bool:
    """Whether this write requests a restore of the version too. Mutating admission has set it to the snapshot's."""
    request, before = (section(each, *RKE, RESTORE) for each in (obj, old or {}))
    return request != before and restores_spec(request)


def _is_up_to_date(cluster: Object) -> bool:
    """Whether every machine has the version of the spec. Until then, a user can go back to the earlier version."""
    generation = value(cluster, "metadata", "generation")
    updated = find(cluster, "Updated")
    is_observed = value(cluster, "status", "observedGeneration") == generation
    return is_observed and updated is not None and updated.get("status") == "True"


def _infrastructure(obj: Object, old: Object | None) -> Iterator[FieldError]:
    if old is None or value(old, *RKE) is None:
        yield from pools.core_reference(section(obj, *RKE, "infrastructureRef"), f"{PATH}.infrastructureRef")
        return
    for part in ("apiVersion", "kind", "name"):
        if text(obj, *RKE, "infrastructureRef", part) != text(old, *RKE, "infrastructureRef", part):
            yield forbidden_field(f"{PATH}.infrastructureRef", "field is immutable")
            return


def _directories(obj: Object, old: Object | None) -> Iterator[FieldError]:
    path = f"{PATH}.dataDirectories"
    directories = section(obj, *RKE, "dataDirectories")
    before = section(old or {}, *RKE, "dataDirectories")
    for name, directory in directories.items():
        if directory != before.get(name):
            yield from _directory(f"{path}.{name}", directory or "")
    if old is None or value(old, *RKE) is None:
        return
    for name in sorted({*directories, *before}):
        if (directories.get(name) or "") != (before.get(name) or ""):
            yield forbidden_field(f"{path}.{name}", "field is immutable: data on the machines is not moved")


def _directory(path: str, directory: str) -> Iterator[FieldError]:
    try:
        checked_directory(path, directory)
    except BadVariable as bad:
        yield forbidden_field(bad.field, bad.detail)


_RULES: tuple[tuple[str, Rule], ...] = (
    (PATH, _origin_unchanged),
    ("metadata.name", _name),
    ("spec.kubernetesVersion", _version),
    (f"{PATH}.infrastructureRef", _infrastructure),
    (f"{PATH}.dataDirectories", _directories),
    (f"{PATH}.machinePools", pools.validate),
    *config.RULES,
    *operations.RULES,
    ("spec", refuse_unsupported),
)
"""Validation rules, each with the field that is reported if the rule itself raises."""
