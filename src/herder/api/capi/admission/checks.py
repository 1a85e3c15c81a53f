"""Field checks shared by several kinds; each takes the path of a field and yields its errors."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Any

from herder.api.capi.admission.values import section, text, value
from herder.api.capi.names import (
    CONTROL_PLANE,
    OUTDATED_REVISION_TAINT,
    SKIP_PREFLIGHT_CHECKS,
    UNINITIALIZED_TAINT,
    annotations_of,
)
from herder.api.capi.naming import RANDOM, NamingError, machine_name
from herder.api.numbers import parse_int64
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, forbidden_field, invalid_value, required, too_long
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import label_selector_from_object, validate_label_selector

IMMUTABLE = "field is immutable"
_VERSION = re.compile(r"v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-0-9a-zA-Z_.+]*)?\Z")
_PERCENT = re.compile(r"[0-9]{1,9}%\Z")
_ANNOTATION_BYTES = 256 << 10


def is_defined(reference: Object) -> bool:
    return any(reference.get(part) for part in ("apiGroup", "kind", "name"))


def cluster_name_unchanged(obj: Object, old: Object | None) -> Iterator[FieldError]:
    if old is not None and text(old, "spec", "clusterName") != text(obj, "spec", "clusterName"):
        yield forbidden_field("spec.clusterName", IMMUTABLE)


def same_cluster_in_template(obj: Object) -> Iterator[FieldError]:
    name = text(obj, "spec", "clusterName")
    if name != text(obj, "spec", "template", "spec", "clusterName"):
        detail = "spec.clusterName and spec.template.spec.clusterName must be set to the same value"
        yield invalid_value("spec.clusterName", name, detail)


def bootstrap(machine_spec: Object, path: str) -> Iterator[FieldError]:
    if not is_defined(section(machine_spec, "bootstrap", "configRef")) and (
        value(machine_spec, "bootstrap", "dataSecretName") is None
    ):
        at = f"{path}.bootstrap"
        yield required(at, f"expected either {at}.dataSecretName or {at}.configRef to be populated")


def version(found: str, path: str) -> Iterator[FieldError]:
    if found and not _VERSION.match(found):
        yield invalid_value(path, found, "must be a valid semantic version")


def int_or_percent(found: Any, path: str) -> Iterator[FieldError]:
    is_count = isinstance(found, int) and not isinstance(found, bool) and found >= 0
    is_percent = isinstance(found, str) and _PERCENT.match(found)
    if found is not None and not is_count and not is_percent:
        yield invalid_value(path, found, 'must be either an int or a percentage, such as 1 or "25%", and not negative')


def cidr_blocks(found: Iterable[str], path: str) -> Iterator[FieldError]:
    for position, block in enumerate(found):
        if not _is_cidr(block):
            yield invalid_value(f"{path}[{position}]", block, f"invalid CIDR address: {block}")


def _is_cidr(block: str) -> bool:
    address, _, bits = block.partition("/")
    try:
        longest = ipaddress.ip_address(address).max_prefixlen
    except ValueError:
        return False
    return "%" not in address and bits.isdecimal() and 0 <= parse_int64(bits, -1) <= longest


# --- selectors and templates --------------------------------------------------------------------------------------


def selector_not_empty(selector: Object, path: str) -> Iterator[FieldError]:
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield required(path, "selector must not be empty")


def selects_template(obj: Object) -> Iterator[FieldError]:
    """The selector must be valid, not empty, and match the labels of the template."""
    selector = section(obj, "spec", "selector")
    problems = [*validate_label_selector(selector, "spec.selector")]
    if problems:
        yield from problems
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        # Only an object with generateName has no selector here: its default selector needs the name.
        yield required("spec.selector", "must be set where metadata.generateName is used instead of metadata.name")
    else:
        parsed = label_selector_from_object(selector)
        labels = section(obj, "spec", "template", "metadata", "labels")
        if parsed is not None and not parsed.matches(labels):
            yield invalid_value("spec.template.metadata.labels", labels, f'must match spec.selector "{parsed}"')


def template_metadata(obj: Object) -> Iterator[FieldError]:
    """The template's labels and annotations must be valid on Machines."""
    path = "spec.template.metadata"
    for key, label in section(obj, "spec", "template", "metadata", "labels").items():
        for complaint in names.qualified_name(key):
            yield invalid_value(f"{path}.labels", key, complaint)
        for complaint in names.label_value(label):
            yield invalid_value(f"{path}.labels", label, complaint)
    annotations = section(obj, "spec", "template", "metadata", "annotations")
    for key in annotations:
        for complaint in names.qualified_name(key.lower()):
            yield invalid_value(f"{path}.annotations", key, complaint)
    if sum(len(key.encode()) + len(note.encode()) for key, note in annotations.items()) > _ANNOTATION_BYTES:
        yield too_long(f"{path}.annotations", _ANNOTATION_BYTES)


def machine_naming(obj: Object) -> Iterator[FieldError]:
    path, template = "spec.machineNaming.template", text(obj, "spec", "machineNaming", "template")
    if not template:
        return
    if RANDOM not in template:
        yield invalid_value(path, template, f"invalid template, {RANDOM} is missing")
    try:
        name = machine_name(template, "cluster", "machineset", "abcde")
    except NamingError as error:
        yield invalid_value(path, template, f"invalid template: {error}")
        return
    for complaint in names.dns1123_subdomain(name):
        detail = f"invalid template, generated names would not be valid Kubernetes object names: {complaint}"
        yield invalid_value(path, template, detail)


# --- taints -------------------------------------------------------------------------------------------------------

_NOT_ALLOWED = "taint key is not allowed"
_RESERVED_TAINTS = {
    UNINITIALIZED_TAINT: _NOT_ALLOWED,
    OUTDATED_REVISION_TAINT: _NOT_ALLOWED,
    "node-role.kubernetes.io/master": "taint is deprecated since 1.24 and should not be used anymore",
}
_NODE_PREFIX, _CLOUD_PREFIX = "node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"
_OUT_OF_SERVICE = f"{_NODE_PREFIX}out-of-service"
_CONTROL_PLANE_TAINT = "node-role.kubernetes.io/control-plane"


def taints(machine_spec: Object, labels: Object, path: str) -> Iterator[FieldError]:
    """Reject taint keys reserved by Kubernetes, cloud providers or Cluster API; `labels` are those of the Machine."""
    for position, taint in enumerate(machine_spec.get("taints") or []):
        at, key = f"{path}.taints[{position}].key", taint.get("key") or ""
        if complaint := _reserved(key):
            yield invalid_value(at, key, complaint)
        if key == _CONTROL_PLANE_TAINT and CONTROL_PLANE not in labels:
            yield invalid_value(at, key, "taint is not allowed for worker Machines")
        for complaint in names.qualified_name(key):
            yield invalid_value(at, key, complaint)


def _reserved(key: str) -> str:
    if key.startswith(_NODE_PREFIX) and key != _OUT_OF_SERVICE:
        return f"taint key must not have the prefix {_NODE_PREFIX}, except for {_OUT_OF_SERVICE}"
    if key.startswith(_CLOUD_PREFIX):
        return f"taint key must not have the prefix {_CLOUD_PREFIX}"
    return _RESERVED_TAINTS.get(key, "")


# --- annotations --------------------------------------------------------------------------------------------------

PREFLIGHT_CHECKS = (
    "All",
    "ControlPlaneIsStable",
    "ControlPlaneVersionSkew",
    "KubeadmVersionSkew",
    "KubernetesVersionSkew",
)


def skipped_preflight_checks(obj: Object) -> Iterator[FieldError]:
    skipped = annotations_of(obj).get(SKIP_PREFLIGHT_CHECKS)
    unknown = [name.strip() for name in skipped.split(",") if name.strip() not in PREFLIGHT_CHECKS] if skipped else []
    if unknown:
        detail = f"skipped preflight check(s) must be among: {', '.join(PREFLIGHT_CHECKS)}"
        yield invalid_value(f"metadata.annotations.{SKIP_PREFLIGHT_CHECKS}", unknown, detail)
