"""Build the served Resource of a CustomResourceDefinition from its accepted names and versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from herder.engine.apiserver.crds.conversion import Conversion, Convert, WebhookCaller, WebhookConversion, rename
from herder.engine.apiserver.crds.instance_strategy import CustomStrategy
from herder.engine.apiserver.crds.model import CustomModel
from herder.engine.apiserver.crds.status import condition_is
from herder.engine.apiserver.endpoints.discovery import version_priority
from herder.engine.apiserver.registry.resources import Column, Resource, ScalePaths, Version
from herder.engine.meta.kinds import GroupResource, GroupVersionKind, Object

# kube-apiserver's order for custom resources.
_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_AGE = Column("Age", "date", json_path=".metadata.creationTimestamp")


def resource_from_crd(crd: Object, *, webhooks: WebhookCaller | None = None, schema_changed_at: int = 0) -> Resource:
    """Build the resource of a CRD. Objects stored before `schema_changed_at` were written under another schema.

    Without `webhooks`, conversion strategy Webhook is treated like None.
    """
    spec = crd["spec"]
    names = (crd.get("status") or {}).get("acceptedNames") or {}
    names = names if names.get("plural") else spec["names"]
    group = spec["group"]
    models = {entry["name"]: _model(spec, names, entry) for entry in spec["versions"]}
    versions = {entry["name"]: _version(spec, names, entry, models[entry["name"]]) for entry in spec["versions"]}
    storage = next(entry["name"] for entry in spec["versions"] if entry.get("storage"))
    return Resource(
        group=group,
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        kind=names["kind"],
        list_kind=names.get("listKind") or names["kind"] + "List",
        namespaced=spec["scope"] == "Namespaced",
        versions=versions,
        storage_version=storage,
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        verbs=_VERBS,
        strategy=CustomStrategy(
            GroupResource(group, names["plural"]), terminating=condition_is(crd, "Terminating", "True")
        ),
        custom=True,
        convert=_conversion(spec, models, webhooks),
        convert_renames=not _by_webhook(spec, webhooks),
        schema_changed_at=schema_changed_at,
        prune_and_default=_pruner_and_defaulter(models),
    )


def _model(spec: Object, names: Object, entry: Object) -> CustomModel:
    schema = (entry.get("schema") or {}).get("openAPIV3Schema")
    scale = _scale((entry.get("subresources") or {}).get("scale"))
    return CustomModel(GroupVersionKind(spec["group"], entry["name"], names["kind"]), schema, scale)


def _version(spec: Object, names: Object, entry: Object, model: CustomModel) -> Version:
    subresources = entry.get("subresources") or {}
    return Version(
        name=entry["name"],
        model=model,
        served=bool(entry.get("served")),
        columns=_columns(entry.get("additionalPrinterColumns")),
        selectable=tuple(field["jsonPath"] for field in entry.get("selectableFields") or ()),
        status=subresources.get("status") is not None,
        scale=model.scale,
        deprecation=_deprecation(spec, names, entry),
    )


def _columns(declared: list[Object] | None) -> tuple[Column, ...]:
    if not declared:
        return (_AGE,)
    return tuple(
        Column(
            name=column["name"],
            type=column["type"],
            format=column.get("format") or "",
            description=column.get("description")
            or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}",
            priority=column.get("priority") or 0,
            json_path=column["jsonPath"],
        )
        for column in declared
    )


def _scale(declared: Object | None) -> ScalePaths | None:
    if declared is None:
        return None
    return ScalePaths(
        declared["specReplicasPath"], declared["statusReplicasPath"], declared.get("labelSelectorPath") or ""
    )


def _deprecation(spec: Object, names: Object, entry: Object) -> str:
    if not entry.get("deprecated"):
        return ""
    if entry.get("deprecationWarning") is not None:
        return str(entry["deprecationWarning"])
    message = f"{spec['group']}/{entry['name']} {names['kind']} is deprecated"
    better = sorted(
        (
            other["name"]
            for other in spec["versions"]
            if other.get("served")
            and not other.get("deprecated")
            and version_priority(other["name"]) < version_priority(entry["name"])
        ),
        key=version_priority,
    )
    return f"{message}; use {spec['group']}/{better[0]} {names['kind']}" if better else message


def _pruner_and_defaulter(models: Mapping[str, CustomModel]) -> Callable[[Object], None]:
    """Return a function that prunes and defaults an object by the schema of its own version, which may be an old
    storage version."""

    def prune_and_default(obj: Object) -> None:
        model = models.get(str(obj.get("apiVersion", "")).rpartition("/")[2])
        if model is not None:
            model.prune_and_default(obj)

    return prune_and_default


def _conversion(spec: Object, models: Mapping[str, CustomModel], webhooks: WebhookCaller | None) -> Conversion | None:
    if len(models) == 1:
        return None
    convert: Convert = rename
    if webhooks is not None and _by_webhook(spec, webhooks):
        convert = WebhookConversion(spec["conversion"]["webhook"], webhooks)
    return Conversion(convert, models)


def _by_webhook(spec: Object, webhooks: WebhookCaller | None) -> bool:
    return webhooks is not None and (spec.get("conversion") or {}).get("strategy") == "Webhook"
