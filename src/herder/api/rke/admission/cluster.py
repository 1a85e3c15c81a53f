"""A provisioning Cluster as a whole. Only what a write changes is judged: an object that came from elsewhere with
something that is refused here can still be changed in other places."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from herder.api.capi.admission.total import Rule, problems
from herder.api.capi.admission.values import count_values, section, text, value, with_value
from herder.api.capi.names import annotations_of
from herder.api.rke.admission import config, operations, pools
from herder.api.rke.admission.places import PATH, RKE
from herder.api.rke.distributions import release_of, skips, version_of
from herder.api.rke.install import BadVariable, checked_directory
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, forbidden_field, invalid_value, required, too_many
from herder.engine.meta.kinds import Object

MOST_VALUES = 20_000
_ALLOW_SCHEMA_DROP = "provisioning.cattle.io/allow-dynamic-schema-drop"


def default(obj: Object, old: Object | None) -> Object:
    """The driver's fields that a pool was made with are kept, also by writers that do not know of them: without them
    the next version of a driver would replace the pool's machines."""
    asked = value(obj, *RKE, "machinePools")
    if old is None or not isinstance(asked, list) or annotations_of(obj).get(_ALLOW_SCHEMA_DROP) == "true":
        return obj
    known = {text(pool, "name"): text(pool, "dynamicSchemaSpec") for pool in pools.listed(old)}
    kept = [_with_schema(pool, known) for pool in asked]
    return obj if kept == asked else with_value(obj, kept, *RKE, "machinePools")


def _with_schema(pool: Any, known: dict[str, str]) -> Any:
    if not isinstance(pool, dict) or pool.get("dynamicSchemaSpec") or not known.get(text(pool, "name")):
        return pool
    return {**pool, "dynamicSchemaSpec": known[text(pool, "name")]}


def validate(obj: Object, old: Object | None) -> list[FieldError]:
    if too_large := problems(_number_of_values, obj, old, "spec"):
        return too_large
    if value(obj, *RKE) is None:
        return [*_kept_as_built(obj, old)]
    return [problem for path, rule in _PARTS for problem in problems(rule, obj, old, path)]


def _number_of_values(obj: Object, old: Object | None) -> Iterator[FieldError]:
    """Every controller of the cluster looks at all of them in each of its passes, on the event loop."""
    before = count_values(old.get("spec"), sys.maxsize) if old is not None else 0
    count = count_values(obj.get("spec"), max(before, MOST_VALUES))
    if count > max(before, MOST_VALUES):
        yield too_many("spec", count, MOST_VALUES)


def _kept_as_built(obj: Object, old: Object | None) -> Iterator[FieldError]:
    if old is not None and (value(old, *RKE) is None) != (value(obj, *RKE) is None):
        yield forbidden_field(PATH, "an imported cluster cannot become one that is built here, nor the other way round")


def _name(obj: Object, old: Object | None) -> Iterator[FieldError]:
    """Every object of the cluster carries the name as a label."""
    name = text(obj, "metadata", "name")
    if old is None and name:
        for complaint in names.dns1123_label(name):
            yield invalid_value("metadata.name", name, complaint)


def _version(obj: Object, old: Object | None) -> Iterator[FieldError]:
    version, before = (text(each, "spec", "kubernetesVersion") for each in (obj, old or {}))
    if not version and before:
        yield required("spec.kubernetesVersion", f"a cluster keeps its version, {before}, until it gets another one")
    if not version or version == before:
        return
    asked, known = version_of(version), version_of(before)
    if asked is None or asked.suffix:
        wanted = "must be a version with its distribution, such as v1.34.1+k3s1 (or +rke2r1, +kubeadm1, +herder1)"
        yield invalid_value("spec.kubernetesVersion", version, wanted)
    elif known is not None and asked.facts != known.facts:
        message = f"a cluster keeps its distribution, which is that of {before}: make another cluster for this one"
        yield invalid_value("spec.kubernetesVersion", version, message)
    elif (known_release := release_of(before)) and (problem := skips(known_release, version, annotations_of(obj))):
        yield invalid_value("spec.kubernetesVersion", version, problem)


def _infrastructure(obj: Object, old: Object | None) -> Iterator[FieldError]:
    if old is None or value(old, *RKE) is None:
        return
    for part in ("apiVersion", "kind", "name"):
        if text(obj, *RKE, "infrastructureRef", part) != text(old, *RKE, "infrastructureRef", part):
            yield forbidden_field(f"{PATH}.infrastructureRef", "a cluster cannot move to other infrastructure")
            return


def _directories(obj: Object, old: Object | None) -> Iterator[FieldError]:
    path = f"{PATH}.dataDirectories"
    asked = section(obj, *RKE, "dataDirectories")
    before = section(old or {}, *RKE, "dataDirectories")
    for name, directory in asked.items():
        if directory != before.get(name):
            yield from _directory(f"{path}.{name}", directory or "")
    if old is None or value(old, *RKE) is None:
        return
    for name in sorted({*asked, *before}):
        if (asked.get(name) or "") != (before.get(name) or ""):
            yield forbidden_field(f"{path}.{name}", "field is immutable: what is on the machines stays where it is")


def _directory(path: str, directory: str) -> Iterator[FieldError]:
    try:
        checked_directory(path, directory)
    except BadVariable as bad:
        yield forbidden_field(bad.field, bad.detail)


_PARTS: tuple[tuple[str, Rule], ...] = (
    (PATH, _kept_as_built),
    ("metadata.name", _name),
    ("spec.kubernetesVersion", _version),
    (f"{PATH}.infrastructureRef", _infrastructure),
    (f"{PATH}.dataDirectories", _directories),
    (f"{PATH}.machinePools", pools.validate),
    *config.PARTS,
    *operations.PARTS,
)
"""Rules with the field that is refused where a rule cannot be applied."""
