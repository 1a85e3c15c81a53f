"""CEL environments: declared variables and their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from herder.engine.schema.cel.check.schema_types import Schema, schema_type
from herder.engine.schema.cel.types import (
    AUTHORIZER,
    BOOL,
    DYN,
    INT,
    RESOURCE_CHECK,
    STRING,
    TIMESTAMP,
    Field,
    ObjectType,
    Type,
    list_of,
    map_of,
    optional_of,
)


@dataclass(frozen=True, slots=True)
class Env:
    """Declared variables by name; names may be qualified (`authorizer.requestResource`).

    The function libraries are those of Kubernetes 1.36. Only mutating policies also have the JSON patch helpers, and
    `Object{…}` and `JSONPatch{…}` for their results.
    """

    variables: Mapping[str, Type]
    json_patch: bool = False

    def with_variables(self, variables: Mapping[str, Type]) -> Env:
        return Env({**self.variables, **variables}, self.json_patch)


def rule_env(schema: Schema, *, resource_root: bool = False, optional_old_self: bool = False) -> Env | None:
    """Return the environment of a validation rule at this place of a schema; None if CEL cannot access it."""
    type = schema_type(schema, resource_root=resource_root)
    return None if type is None else rule_env_of_type(type, optional_old_self=optional_old_self)


def rule_env_of_type(type: Type, *, optional_old_self: bool = False) -> Env:
    return Env({"self": type, "oldSelf": optional_of(type) if optional_old_self else type})


def admission_env(
    *,
    params: bool = False,
    authorizer: bool = True,
    variables: Mapping[str, Type] | None = None,
    json_patch: bool = False,
) -> Env:
    """Return the environment of matchConditions and admission policies; `variables` are the policy's own, in order."""
    declared: dict[str, Type] = {
        "object": DYN,
        "oldObject": DYN,
        "namespaceObject": _NAMESPACE,
        "request": _REQUEST,
    }
    if params:
        declared["params"] = DYN
    if authorizer:
        declared["authorizer"] = AUTHORIZER
        declared["authorizer.requestResource"] = RESOURCE_CHECK
    if variables is not None:
        declared["variables"] = _object("kubernetes.variables", **variables)
    return Env(declared, json_patch)


def _object(name: str, /, **fields: Type) -> ObjectType:
    return ObjectType(name, {key: Field(key, type) for key, type in fields.items()})


_STRINGS = list_of(STRING)
_STRING_MAP = map_of(STRING, STRING)
_KIND = _object("kubernetes.GroupVersionKind", group=STRING, version=STRING, kind=STRING)
_RESOURCE = _object("kubernetes.GroupVersionResource", group=STRING, version=STRING, resource=STRING)
_USER = _object(
    "kubernetes.UserInfo", username=STRING, uid=STRING, groups=_STRINGS, extra=map_of(STRING, list_of(STRING))
)
_REQUEST = _object(
    "kubernetes.AdmissionRequest",
    kind=_KIND,
    resource=_RESOURCE,
    subResource=STRING,
    requestKind=_KIND,
    requestResource=_RESOURCE,
    requestSubResource=STRING,
    name=STRING,
    namespace=STRING,
    operation=STRING,
    userInfo=_USER,
    dryRun=BOOL,
    options=DYN,
)
_NAMESPACE = _object(
    "kubernetes.Namespace",
    metadata=_object(
        "kubernetes.NamespaceMetadata",
        name=STRING,
        generateName=STRING,
        namespace=STRING,
        labels=_STRING_MAP,
        annotations=_STRING_MAP,
        UID=STRING,
        creationTimestamp=TIMESTAMP,
        deletionGracePeriodSeconds=INT,
        deletionTimestamp=TIMESTAMP,
        generation=INT,
        resourceVersion=STRING,
        finalizers=_STRINGS,
    ),
    spec=_object("kubernetes.NamespaceSpec", finalizers=_STRINGS),
    status=_object(
        "kubernetes.NamespaceStatus",
        conditions=list_of(
            _object(
                "kubernetes.NamespaceCondition",
                status=STRING,
                type=STRING,
                lastTransitionTime=TIMESTAMP,
                message=STRING,
                reason=STRING,
            )
        ),
        phase=STRING,
    ),
)
