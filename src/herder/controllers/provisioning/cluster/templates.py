"""Generate the templates of a machine pool: machine template and RKEBootstrapTemplate."""

from __future__ import annotations

import json

from herder.api.machines.names import safe_concat
from herder.api.references.approvals import derived_reference
from herder.api.references.catalogue import CREDENTIAL
from herder.api.rke import names
from herder.api.rke.hashes import bootstrap_template_hash, machine_template_hash
from herder.api.rke.kinds import BOOTSTRAP_TEMPLATE
from herder.api.rke.sets import NO_PRUNE
from herder.controllers.provisioning.cluster.desired import CONFIG_VERSION, Pool, Problem
from herder.controllers.provisioning.cluster.objects import has_own_infrastructure
from herder.engine.memo import DigestMemo
from herder.engine.meta.kinds import Object

# --- machines ---------------------------------------------------------------------------------------------------------


def machine_template(pool: Pool, config: Object) -> Object:
    """The machine template of a pool.

    Its name contains a hash of the infrastructure fields, so that Cluster API replaces machines when these change, but
    not when only `common` does.
    """
    kind, meta = pool.kinds.template, pool.cluster["metadata"]
    fields = _known_fields(pool)
    spec = {name: value for name, value in config.items() if name in fields and value is not None}
    if common := _common(pool):
        spec["common"] = common
    digest = machine_template_hash(pool.deployment, spec)
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": safe_concat(pool.deployment, digest),
            "namespace": meta["namespace"],
            "labels": {**NO_PRUNE, names.TEMPLATE_HASH: digest},
            "annotations": {
                names.CLONED_FROM_VERSION: CONFIG_VERSION,
                names.CLONED_FROM_KIND: pool.config["kind"],
                names.CLONED_FROM_NAME: pool.config["name"],
                **derived_reference(pool.cluster, pool.credential_path, f"spec.template.{CREDENTIAL}"),
            },
        },
        "spec": {"clusterName": meta["name"], "template": {"spec": spec}},
    }


def _known_fields(pool: Pool) -> frozenset[str]:
    """Fields in the schema that the pool recorded: fields of newer drivers must not replace machines."""
    fields = schema_fields(pool)
    if fields is None:
        raise Problem(f"{pool.path}.dynamicSchemaSpec: not filled in yet")
    return fields


def schema_fields(pool: Pool) -> frozenset[str] | None:
    """Fields in the recorded schema of the node driver; None if the schema is missing or invalid."""
    text = pool.spec.get("dynamicSchemaSpec") or ""
    return _schemas.get(text, lambda: _fields_in(text))


_schemas: DigestMemo[frozenset[str] | None] = DigestMemo(16)
"""By their text: the pools of a cluster repeat the schemas of few drivers."""


def _fields_in(text: str) -> frozenset[str] | None:
    try:
        spec = json.loads(text)
    except (ValueError, RecursionError):
        return None
    fields = spec.get("resourceFields") or {} if isinstance(spec, dict) else None
    return frozenset(fields) if isinstance(fields, dict) else None


def _common(pool: Pool) -> Object:
    common = {
        "labels": pool.spec.get("labels"),
        "taints": pool.spec.get("taints"),
        "cloudCredentialSecretName": pool.credential,
    }
    return {name: value for name, value in common.items() if value}


# --- bootstrap --------------------------------------------------------------------------------------------------------


def bootstrap_template_name(pool: Pool) -> str:
    """One template per cluster; with another infrastructure provider, one per pool, which may have userdata."""
    if has_own_infrastructure(pool.cluster):
        return names.bootstrap_template(pool.cluster["metadata"]["name"])
    return safe_concat(pool.deployment, bootstrap_template_hash(pool.deployment, _inline_userdata(pool)))


def bootstrap_template(pool: Pool) -> Object:
    meta = pool.cluster["metadata"]
    spec: Object = {"clusterName": meta["name"]}
    if not has_own_infrastructure(pool.cluster) and pool.spec.get("userdata"):
        spec["userdata"] = pool.spec["userdata"]
    return {
        "apiVersion": BOOTSTRAP_TEMPLATE.api_version,
        "kind": BOOTSTRAP_TEMPLATE.kind,
        "metadata": {
            "name": bootstrap_template_name(pool),
            "namespace": meta["namespace"],
            "labels": {names.CLUSTER_NAME: meta["name"]},
        },
        "spec": {"clusterName": meta["name"], "template": {"spec": spec}},
    }


def _inline_userdata(pool: Pool) -> str:
    return str((pool.spec.get("userdata") or {}).get("inlineUserdata") or "")
