"""The built-in core runs only if there is no other Cluster API core, and reports the evidence it found."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from herder.api.capi.core import Evidence, Mode, decide
from herder.api.capi.inventory import core_provider

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
OURS = {"app.kubernetes.io/part-of": "herder"}


def named(name: str, namespace: str = "", labels: Any = None, **rest: Any) -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {}), **({"labels": labels} if labels else {})}
    return {"metadata": meta, **rest}


def deployment(replicas: int | None, **extra: Any) -> dict[str, Any]:
    spec = {} if replicas is None else {"replicas": replicas}
    return named("capi-controller-manager", "capi-system", kind="Deployment", spec=spec, **extra)


def provider(type_: str = "CoreProvider") -> dict[str, Any]:
    return named("cluster-api", "capi-system", type=type_, version="v1.12.0")


def webhook(group: str = "cluster.x-k8s.io", *, path: str = "", url: str = "", **extra: Any) -> dict[str, Any]:
    client = {"url": url} if url else {"service": {"path": path}}
    hook = {"rules": [{"apiGroups": [group], "resources": ["clusters"]}], "clientConfig": client}
    return named("capi-webhooks", kind="ValidatingWebhookConfiguration", webhooks=[hook], **extra)


def lease(renewed: str, holder: str = "pod-1", seconds: int | None = 15) -> dict[str, Any]:
    spec = {"renewTime": renewed, "holderIdentity": holder, "leaseDurationSeconds": seconds}
    return named("controller-leader-election-capi", "capi-system", spec=spec)


def cluster_definition(strategy: str) -> dict[str, Any]:
    return named("clusters.cluster.x-k8s.io", spec={"conversion": {"strategy": strategy}})


CORE_PATH = "/validate-cluster-x-k8s-io-v1beta2-cluster"
OTHER_CORE = {
    "a running Deployment": (
        {"deployments": deployment(1)},
        "Deployment capi-system/capi-controller-manager runs its controllers",
    ),
    "a Deployment of one replica by default": ({"deployments": deployment(None)}, "Deployment capi-system/"),
    "an entry in the inventory": ({"providers": provider()}, "clusterctl installed it (v1.12.0, Provider capi-system"),
    "webhooks in the cluster": ({"webhooks": webhook(path=CORE_PATH)}, "ValidatingWebhookConfiguration capi-webhooks"),
    "webhooks elsewhere": ({"webhooks": webhook(url=f"https://1.2.3.4{CORE_PATH}")}, "calls its webhooks"),
    "a converted definition": ({"definitions": cluster_definition("Webhook")}, "uses its conversion webhook"),
    "a fresh lease": ({"leases": lease("2026-01-01T11:59:50.000000Z")}, "is held by pod-1"),
}
NO_OTHER_CORE = {
    "nothing": {},
    "our own Deployment": {"deployments": deployment(2, labels=OURS)},
    "a Deployment of no replicas": {"deployments": deployment(0)},
    "our own entry in the inventory": {"providers": core_provider()},
    "another kind of provider": {"providers": provider("InfrastructureProvider")},
    "our own webhooks": {"webhooks": webhook(path=CORE_PATH, labels=OURS)},
    "a policy engine that looks at Clusters": {"webhooks": webhook(path="/validate/fail")},
    "a policy engine that looks at everything": {"webhooks": webhook("*", path="/validate/fail")},
    "a provider's webhooks": {
        "webhooks": webhook("infrastructure.cluster.x-k8s.io", path="/validate-infrastructure-cluster-x-k8s-io-v1-foo")
    },
    "a definition without conversion": {"definitions": cluster_definition("None")},
    "an expired lease": {"leases": lease("2026-01-01T11:59:40.000000Z")},
    "a lease without a holder": {"leases": lease("2026-01-01T11:59:59.000000Z", holder="")},
}


def evidence(found: dict[str, Any]) -> Evidence:
    return Evidence(NOW, **{name: (obj,) for name, obj in found.items()})


@pytest.mark.parametrize(("found", "reason"), OTHER_CORE.values(), ids=OTHER_CORE)
def test_the_built_in_core_is_disabled_if_there_is_another(found: dict[str, Any], reason: str) -> None:
    verdict = decide(Mode.AUTO, evidence(found))
    assert (verdict.run, verdict.conflict) == (False, False)
    assert reason in verdict.reason
    assert verdict.reason.endswith("The built-in core is disabled")


@pytest.mark.parametrize(("found", "reason"), OTHER_CORE.values(), ids=OTHER_CORE)
def test_mode_own_conflicts_with_another_core(found: dict[str, Any], reason: str) -> None:
    verdict = decide(Mode.OWN, evidence(found))
    assert (verdict.run, verdict.conflict) == (False, True)
    assert reason in verdict.reason


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.OWN])
@pytest.mark.parametrize("found", NO_OTHER_CORE.values(), ids=NO_OTHER_CORE)
def test_the_built_in_core_runs_if_there_is_no_other(mode: Mode, found: dict[str, Any]) -> None:
    verdict = decide(mode, evidence(found))
    assert (verdict.run, verdict.conflict) == (True, False)


@pytest.mark.parametrize("found", [{}, {"deployments": deployment(1)}])
def test_the_built_in_core_is_disabled_in_mode_external(found: dict[str, Any]) -> None:
    verdict = decide(Mode.EXTERNAL, evidence(found))
    assert (verdict.run, verdict.conflict) == (False, False)


def test_the_reason_lists_all_evidence() -> None:
    verdict = decide(Mode.OWN, evidence({"deployments": deployment(1), "providers": provider()}))
    assert "Deployment" in verdict.reason
    assert "clusterctl" in verdict.reason


def test_the_reason_lists_unreadable_resources() -> None:
    assert (
        "cannot read: deployments, leases" in decide(Mode.AUTO, Evidence(NOW, unseen=("deployments", "leases"))).reason
    )
