"""Detect whether another Cluster API core runs on a cluster; two cores would fight over every object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from herder.api.capi.inventory import CORE_PROVIDER, INSIDE, is_ours
from herder.api.capi.kinds import CLUSTER, GROUP
from herder.engine.meta.kinds import Kind, Object

VALIDATING_WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)
MUTATING_WEBHOOKS = VALIDATING_WEBHOOKS._replace(
    kind="MutatingWebhookConfiguration", plural="mutatingwebhookconfigurations"
)
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
CRD = Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)

CLUSTER_CRD_NAME = f"{CLUSTER.plural}.{CLUSTER.group}"
LEASE_NAME = "controller-leader-election-capi"
CORE_LABEL = "cluster-api"  # value of the label `cluster.x-k8s.io/provider` on a core's Deployment
_DEFAULT_LEASE_SECONDS = 15
# Webhooks of a core have such a path; other webhooks for Clusters, such as those of policy engines, do not.
_WEBHOOK_PATHS = tuple(f"/{verb}-{GROUP.replace('.', '-')}-" for verb in ("mutate", "validate"))


class Mode(StrEnum):
    AUTO = "auto"  # run the built-in core unless another is installed
    OWN = "own"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found on the cluster; `unseen` names the kinds that could not be read."""

    at: datetime
    webhooks: tuple[Object, ...] = ()  # validating and mutating webhook configurations
    providers: tuple[Object, ...] = ()  # clusterctl's inventory
    deployments: tuple[Object, ...] = ()  # Deployments with the core provider's label
    leases: tuple[Object, ...] = ()  # Leases with the name that a core uses
    definitions: tuple[Object, ...] = ()  # the CustomResourceDefinition of Cluster
    unseen: tuple[str, ...] = ()
    inside: bool = False  # this process is the embedded API server


class Verdict(NamedTuple):
    run: bool
    reason: str
    conflict: bool = False  # the built-in core was requested but must not run


def decide(mode: Mode, evidence: Evidence) -> Verdict:
    if mode is Mode.EXTERNAL:
        return Verdict(False, "--capi-core external selects another Cluster API core")
    others = list(find_other_cores(evidence))
    if not others:
        return Verdict(True, "no other Cluster API core is installed" + _unseen(evidence))
    found = f"another Cluster API core is installed on this cluster: {'; '.join(others)}"
    if mode is Mode.AUTO:
        return Verdict(False, f"{found}. The built-in core is disabled")
    return Verdict(False, f"{found}. Remove it, or pass --capi-core auto to disable the built-in core", conflict=True)


def find_other_cores(evidence: Evidence) -> Iterator[str]:
    for deployment in evidence.deployments:
        if not is_ours(deployment) and (deployment.get("spec") or {}).get("replicas", 1) > 0:
            yield f"Deployment {_place(deployment)} runs its controllers"
    for provider in evidence.providers:
        if provider.get("type") != CORE_PROVIDER:
            continue
        if is_ours(provider) and not evidence.inside and INSIDE in (provider["metadata"].get("annotations") or {}):
            yield "herder up runs one in the process of this API server"
        elif not is_ours(provider):
            yield f"clusterctl installed it ({provider.get('version', 'version unknown')}, Provider {_place(provider)})"
    for configuration in evidence.webhooks:
        if not is_ours(configuration) and any(map(_belongs_to_core, configuration.get("webhooks") or [])):
            yield f"{configuration['kind']} {_place(configuration)} calls its webhooks"
    for definition in evidence.definitions:
        if _converts_by_webhook(definition):
            yield f"CustomResourceDefinition {_place(definition)} uses its conversion webhook"
    for lease in evidence.leases:
        if _is_held(lease, evidence.at):
            yield f"Lease {_place(lease)} is held by {lease['spec']['holderIdentity']}"


def _belongs_to_core(webhook: Object) -> bool:
    names_group = any(GROUP in (rule.get("apiGroups") or []) for rule in webhook.get("rules") or [])
    client = webhook.get("clientConfig") or {}
    address = client.get("url") or (client.get("service") or {}).get("path") or ""
    return names_group and any(path in address for path in _WEBHOOK_PATHS)


def _converts_by_webhook(definition: Object) -> bool:
    """The definitions of the built-in core have no conversion webhook."""
    conversion = (definition.get("spec") or {}).get("conversion") or {}
    return bool(conversion.get("strategy") == "Webhook")


def _is_held(lease: Object, now: datetime) -> bool:
    spec = lease.get("spec") or {}
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return False
    lease_duration = timedelta(seconds=spec.get("leaseDurationSeconds") or _DEFAULT_LEASE_SECONDS)
    return datetime.fromisoformat(spec["renewTime"]) + lease_duration > now


def _place(obj: Object) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def _unseen(evidence: Evidence) -> str:
    return f" (cannot read: {', '.join(evidence.unseen)})" if evidence.unseen else ""
