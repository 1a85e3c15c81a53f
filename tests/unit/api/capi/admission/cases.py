"""Admission cases: accepted objects, defaults and rejections.

One table serves the rules themselves, both API servers, and Cluster API's own webhooks. All must agree, except where a
case gives a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from herder.api.capi import kinds
from herder.engine.meta.kinds import Kind, Object
from tests.unit.api.capi.admission.objects import (
    CONFIG,
    MISSING,
    VALID,
    changed,
)

AUTOSCALER = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-{}-size"
SKIP_CHECKS = "machineset.cluster.x-k8s.io/skip-preflight-checks"
CLUSTER_LABEL = "cluster.x-k8s.io/cluster-name"
SET_LABEL = "cluster.x-k8s.io/set-name"
DEPLOYMENT_LABEL = "cluster.x-k8s.io/deployment-name"
LONG_SET = "machine-set-" + "x" * 60


@dataclass(frozen=True)
class Case:
    name: str
    kind: Kind
    obj: Object
    old: Object | None = None
    fields: tuple[str, ...] = ()  # named in the rejection; empty if the object is accepted
    result: Object | None = None  # after defaulting; None if nothing is defaulted
    upstream: str = ""  # the reason, where Cluster API's own webhooks decide otherwise

    def __str__(self) -> str:
        return f"{self.kind.kind}: {self.name}"


def _case(kind: Kind, name: str, changes: dict[str, Any], *fields: str, **more: Any) -> Case:
    return Case(name, kind, changed(VALID[kind], changes), fields=fields, **more)


def rejected(kind: Kind, name: str, changes: dict[str, Any], *fields: str, upstream: str = "") -> Case:
    return _case(kind, name, changes, *fields, upstream=upstream)


def rejected_update(kind: Kind, name: str, before: dict[str, Any], after: dict[str, Any], *fields: str) -> Case:
    old = changed(VALID[kind], before)
    return Case(name, kind, changed(old, after), old, fields)


def accepted(kind: Kind, name: str, changes: dict[str, Any], *, upstream: str = "") -> Case:
    return _case(kind, name, changes, upstream=upstream)


def defaulted(kind: Kind, name: str, changes: dict[str, Any], defaults: dict[str, Any]) -> Case:
    obj = changed(VALID[kind], changes)
    return Case(name, kind, obj, result=_with_defaults(obj, defaults))


def defaulted_update(
    kind: Kind, name: str, before: dict[str, Any], after: dict[str, Any], defaults: dict[str, Any]
) -> Case:
    old = changed(VALID[kind], before)
    obj = changed(old, after)
    return Case(name, kind, obj, old, result=_with_defaults(obj, defaults))


def _with_defaults(obj: Object, defaults: dict[str, Any]) -> Object:
    """Merge defaults into a copy. Label keys contain dots, so labels are given as mappings."""
    result = changed(obj, {})
    for path, value in defaults.items():
        parent = result
        *parents, last = path.split(".")
        for name in parents:
            parent = parent.setdefault(name, {})
        parent[last] = {**(parent.get(last) or {}), **value} if isinstance(value, dict) else value
    return result


def _cases_of_clusters() -> list[Case]:
    kind = kinds.CLUSTER
    control_plane = {**CONFIG, "apiGroup": "controlplane.example.com"}
    network = "spec.clusterNetwork.{}.cidrBlocks"
    topology = {"classRef": {"name": "c"}, "version": "v1.36.0"}
    return [
        accepted(kind, "with infrastructure alone", {}),
        accepted(kind, "with a control plane alone", {
            "spec.infrastructureRef": MISSING, "spec.controlPlaneRef": control_plane}),
        rejected(kind, "name that is no label", {"metadata.name": "a" * 64}, "metadata.name"),
        rejected(kind, "made of nothing", {
            "spec": {"controlPlaneEndpoint": {"host": "h.example.com", "port": 6443}}}, "spec"),
        rejected_update(kind, "infrastructure removed", {"spec.controlPlaneRef": control_plane},
                       {"spec.infrastructureRef": MISSING}, "spec.infrastructureRef"),
        rejected_update(kind, "control plane removed", {"spec.controlPlaneRef": control_plane},
                       {"spec.controlPlaneRef": MISSING}, "spec.controlPlaneRef"),
        accepted(kind, "address blocks of both families", {
            network.format("pods"): ["10.0.0.0/8", "fd00::/48"], network.format("services"): ["10.1.2.3/16"]}),
        rejected(kind, "bad pod block", {network.format("pods"): ["10.0.0.0/8", "10.0.0/8"]},
                network.format("pods") + "[1]"),
        rejected(kind, "bad service block", {network.format("services"): ["10.0.0.0"]},
                network.format("services") + "[0]"),
        rejected(kind, "block with too many bits", {network.format("pods"): ["10.0.0.0/33"]},
                network.format("pods") + "[0]"),
        rejected(kind, "block with a zone", {network.format("pods"): ["fe80::1%eth0/64"]},
                network.format("pods") + "[0]"),
        rejected(kind, "block with a netmask", {network.format("pods"): ["10.0.0.0/255.0.0.0"]},
                network.format("pods") + "[0]"),
        rejected(kind, "topology", {"spec.topology": topology}, "spec.topology"),
        rejected_update(kind, "topology on an existing cluster", {}, {"spec.topology": topology}, "spec.topology"),
    ]  # fmt: skip


def _cases_of_machines() -> list[Case]:
    kind = kinds.MACHINE
    return [
        accepted(kind, "complete", {}),
        defaulted(kind, "deletion timeout", {"spec.deletion": MISSING}, {
            "spec.deletion": {"nodeDeletionTimeoutSeconds": 10}}),
        accepted(kind, "deletion timeout of zero", {"spec.deletion": {"nodeDeletionTimeoutSeconds": 0}}),
        defaulted(kind, "cluster label", {"metadata.labels": MISSING}, {"metadata.labels": {CLUSTER_LABEL: "prod"}}),
        defaulted(kind, "cluster label of another", {"metadata.labels": {CLUSTER_LABEL: "other", "a": "b"}}, {
            "metadata.labels": {CLUSTER_LABEL: "prod"}}),
        defaulted(kind, "v before a version", {"spec.version": "1.36.1"}, {"spec.version": "v1.36.1"}),
        accepted(kind, "version with more", {"spec.version": "v1.36.1+rke2r1"}),
        rejected(kind, "version that is none", {"spec.version": "v1.36"}, "spec.version"),
        rejected(kind, "no way to boot", {"spec.bootstrap": {}}, "spec.bootstrap"),
        accepted(kind, "data secret alone", {"spec.bootstrap": {"dataSecretName": "s"}}),
        accepted(kind, "of a pool, by label", {"spec.bootstrap": {}, "metadata.labels": {
            CLUSTER_LABEL: "prod", "cluster.x-k8s.io/pool-name": "p"}}),
        accepted(kind, "of a pool, by owner", {"spec.bootstrap": {}, "metadata.ownerReferences": [
            {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool", "name": "p", "uid": "u"}]}),
        rejected_update(kind, "moved to another cluster", {}, {"spec.clusterName": "other"}, "spec.clusterName"),
        *_cases_of_taints(kind, "spec"),
        accepted(kind, "control plane taint on a control plane Machine", {
            "metadata.labels": {CLUSTER_LABEL: "prod", "cluster.x-k8s.io/control-plane": ""},
            "spec.taints": [_taint("node-role.kubernetes.io/control-plane")]}),
    ]  # fmt: skip


def _taint(key: str) -> Object:
    return {"key": key, "effect": "NoSchedule", "propagation": "Always"}


def _cases_of_taints(kind: Kind, path: str) -> list[Case]:
    bad = (
        "node.cluster.x-k8s.io/uninitialized",
        "node.cluster.x-k8s.io/outdated-revision",
        "node.kubernetes.io/not-ready",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node-role.kubernetes.io/master",
        "node-role.kubernetes.io/control-plane",
    )
    good = [_taint("example.com/gpu"), _taint("node.kubernetes.io/out-of-service")]
    return [
        accepted(kind, "taints of one's own", {f"{path}.taints": good}),
        *(
            rejected(kind, f"taint {key}", {f"{path}.taints": [good[0], _taint(key)]}, f"{path}.taints[1].key")
            for key in bad
        ),
    ]


def _cases_of_templates(kind: Kind) -> list[Case]:
    """Cases that MachineSets and MachineDeployments share."""
    machine, labels = "spec.template.spec", "spec.template.metadata.labels"
    naming = "spec.machineNaming.template"
    return [
        accepted(kind, "complete", {}),
        defaulted(kind, "cluster label", {"metadata.labels": MISSING}, {"metadata.labels": {CLUSTER_LABEL: "prod"}}),
        defaulted(kind, "v before a version", {f"{machine}.version": "1.36.1"}, {f"{machine}.version": "v1.36.1"}),
        rejected(kind, "version that is none", {f"{machine}.version": "next"}, f"{machine}.version"),
        rejected(kind, "no way to boot", {f"{machine}.bootstrap": {}}, f"{machine}.bootstrap"),
        rejected(kind, "labels that are not selected", {labels: {"pool": "b"}}, labels),
        rejected(kind, "selector with a bad operator", {
            "spec.selector": {"matchExpressions": [{"key": "pool", "operator": "Near", "values": ["a"]}]}},
            "spec.selector.matchExpressions[0].operator"),
        rejected(kind, "selector without values", {
            "spec.selector": {"matchExpressions": [{"key": "pool", "operator": "In"}]}},
            "spec.selector.matchExpressions[0].values"),
        rejected(kind, "template of another cluster", {f"{machine}.clusterName": "other"}, "spec.clusterName"),
        rejected_update(kind, "moved to another cluster", {}, {
            "spec.clusterName": "other", f"{machine}.clusterName": "other"}, "spec.clusterName"),
        rejected(kind, "bad label for Machines", {labels: {"pool": "a", "b/a/d": "x"}}, labels),
        rejected(kind, "bad annotation for Machines", {"spec.template.metadata.annotations": {"b a d": "x"}},
                "spec.template.metadata.annotations"),
        accepted(kind, "preflight checks skipped", {"metadata.annotations": {
            SKIP_CHECKS: "KubeadmVersionSkew, ControlPlaneIsStable"}}),
        rejected(kind, "unknown preflight check skipped", {"metadata.annotations": {SKIP_CHECKS: "All,Sometimes"}},
                f"metadata.annotations.{SKIP_CHECKS}"),
        accepted(kind, "names of its own", {naming: "{{ .cluster.name }}-{{ .machineSet.name }}-{{ .random }}"}),
        rejected(kind, "names that are all the same", {naming: "{{ .machineSet.name }}"}, naming),
        rejected(kind, "names of unknown parts", {naming: "{{ .user }}-{{ .random }}"}, naming),
        rejected(kind, "random part that is spelled otherwise", {naming: "{{.random}}"}, naming),
        rejected(kind, "computed names", {naming: "{{ if true }}a{{ end }}{{ .random }}"}, naming,
                upstream="accepts any Go template; Herder supports three variables"),
        rejected(kind, "names that are no names", {naming: "Node_{{ .random }}"}, naming),
        *_cases_of_taints(kind, machine),
        accepted(kind, "control plane taint in a control plane template", {
            labels: {"pool": "a", CLUSTER_LABEL: "prod", "cluster.x-k8s.io/control-plane": "true"},
            f"{machine}.taints": [_taint("node-role.kubernetes.io/control-plane")]},
            upstream="MachineDeployments never create control planes; in Herder they can"),
        *_cases_of_replicas(kind),
    ]  # fmt: skip


def _cases_of_replicas(kind: Kind) -> list[Case]:
    def sizes(low: str, high: str) -> Object:
        return {"metadata.annotations": {AUTOSCALER.format("min"): low, AUTOSCALER.format("max"): high}}

    unset = {"spec.replicas": MISSING}
    return [
        defaulted(kind, "one replica", unset, {"spec.replicas": 1}),
        accepted(kind, "no replicas", {"spec.replicas": 0}),
        defaulted_update(kind, "one replica on update too", {"spec.replicas": 5}, unset, {"spec.replicas": 1}),
        defaulted(kind, "the autoscaler's least", sizes("2", "9") | unset, {"spec.replicas": 2}),
        accepted(kind, "replicas besides the autoscaler's", sizes("2", "9") | {"spec.replicas": 20}),
        defaulted(kind, "one of the autoscaler's annotations", {
            "metadata.annotations": {AUTOSCALER.format("min"): "4"}} | unset, {"spec.replicas": 1}),
        *(
            defaulted_update(kind, f"{before} handed to the autoscaler", {"spec.replicas": before},
                             sizes("2", "9") | unset, {"spec.replicas": after})
            for before, after in ((1, 2), (5, 5), (12, 9))
        ),
        rejected(kind, "the autoscaler's least is no number", sizes("few", "9") | unset,
                f"metadata.annotations.{AUTOSCALER.format('min')}"),
        rejected(kind, "the autoscaler's most is no number", sizes("2", "1.5") | unset,
                f"metadata.annotations.{AUTOSCALER.format('max')}"),
    ]  # fmt: skip


def _cases_of_machine_sets() -> list[Case]:
    kind = kinds.MACHINE_SET
    bare = {"spec.selector": {}, "spec.template.metadata": MISSING}
    return [
        *_cases_of_templates(kind),
        defaulted(kind, "selector", bare, {
            "spec.selector.matchLabels": {SET_LABEL: "one"}, "spec.template.metadata.labels": {SET_LABEL: "one"}}),
        defaulted(kind, "selector by a long name", bare | {"metadata.name": LONG_SET}, {
            "spec.selector.matchLabels": {SET_LABEL: "hash_YZ_wZg_z"},
            "spec.template.metadata.labels": {SET_LABEL: "hash_YZ_wZg_z"}}),
        rejected(kind, "no selector, with generateName", bare | {
            "metadata.name": MISSING, "metadata.generateName": "one-"}, "spec.selector",
            upstream="all MachineSets with generateName share one selector"),
    ]  # fmt: skip


def _cases_of_machine_deployments() -> list[Case]:
    kind = kinds.MACHINE_DEPLOYMENT
    bare = {"spec.selector": {}, "spec.template.metadata": MISSING}
    own = {DEPLOYMENT_LABEL: "one", CLUSTER_LABEL: "prod"}
    rolling, in_flight = "spec.rollout.strategy.rollingUpdate", "spec.remediation.maxInFlight"
    stuck = "accepts negative numbers, which have no effect"
    return [
        *_cases_of_templates(kind),
        rejected(kind, "name that is no label", {"metadata.name": "a" * 64}, "metadata.name"),
        defaulted(kind, "selector", bare, {
            "spec.selector.matchLabels": own, "spec.template.metadata.labels": own}),
        defaulted(kind, "selector of the own cluster only", {
            "spec.selector": {"matchLabels": {"pool": "a"}}, "spec.template.metadata": {"labels": {"pool": "a"}}}, {
            "spec.selector.matchLabels": {CLUSTER_LABEL: "prod"},
            "spec.template.metadata.labels": {CLUSTER_LABEL: "prod"}}),
        rejected(kind, "no selector, with generateName", bare | {
            "metadata.name": MISSING, "metadata.generateName": "one-"}, "spec.selector",
            upstream="all MachineDeployments with generateName share one selector"),
        defaulted(kind, "rollout", {"spec.rollout": MISSING}, {"spec.rollout": {"strategy": {
            "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}}),
        defaulted(kind, "part of a rollout", {"spec.rollout": {"strategy": {
            "type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "50%"}}}}, {rolling: {"maxSurge": 1}}),
        accepted(kind, "replaced on deletion", {"spec.rollout": {"strategy": {"type": "OnDelete"}}}),
        accepted(kind, "percentages", {rolling: {"maxSurge": "25%", "maxUnavailable": "0%"}, in_flight: "10%"}),
        rejected(kind, "surge that is no number", {rolling: {"maxSurge": "some", "maxUnavailable": 1}},
                f"{rolling}.maxSurge"),
        rejected(kind, "unavailability that is no number", {rolling: {"maxSurge": 1, "maxUnavailable": "1"}},
                f"{rolling}.maxUnavailable"),
        rejected(kind, "remediation that is no number", {in_flight: "all"}, in_flight),
        rejected(kind, "negative maxInFlight", {in_flight: "-5%"}, in_flight, upstream=stuck),
        rejected(kind, "no room to roll", {rolling: {"maxSurge": 0, "maxUnavailable": 0}}, rolling),
        rejected(kind, "negative maxSurge", {rolling: {"maxSurge": -1, "maxUnavailable": 1}}, f"{rolling}.maxSurge",
                upstream=stuck),
    ]  # fmt: skip


def _cases_of_machine_pools() -> list[Case]:
    kind, machine = kinds.MACHINE_POOL, "spec.template.spec"
    return [
        accepted(kind, "complete", {}),
        defaulted(kind, "cluster label", {"metadata.labels": MISSING}, {"metadata.labels": {CLUSTER_LABEL: "prod"}}),
        defaulted(kind, "deletion timeout", {f"{machine}.deletion": MISSING}, {
            f"{machine}.deletion": {"nodeDeletionTimeoutSeconds": 10}}),
        defaulted(kind, "v before a version", {f"{machine}.version": "1.36.1"}, {f"{machine}.version": "v1.36.1"}),
        rejected(kind, "version that is none", {f"{machine}.version": "next"}, f"{machine}.version"),
        rejected(kind, "no way to boot", {f"{machine}.bootstrap": {}}, f"{machine}.bootstrap"),
        rejected(kind, "template of another cluster", {f"{machine}.clusterName": "other"}, "spec.clusterName"),
        rejected_update(kind, "moved to another cluster", {}, {
            "spec.clusterName": "other", f"{machine}.clusterName": "other"}, "spec.clusterName"),
        rejected(kind, "taints", {f"{machine}.taints": [_taint("example.com/gpu")]}, f"{machine}.taints"),
        rejected(kind, "bad label for Machines", {"spec.template.metadata": {"labels": {"b/a/d": "x"}}},
                "spec.template.metadata.labels"),
        *_cases_of_replicas(kind),
    ]  # fmt: skip


def _cases_of_health_checks() -> list[Case]:
    kind, startup = kinds.MACHINE_HEALTH_CHECK, "spec.checks.nodeStartupTimeoutSeconds"
    limit = "spec.remediation.triggerIf.unhealthyLessThanOrEqualTo"
    return [
        accepted(kind, "complete", {}),
        defaulted(kind, "startup timeout", {"spec.checks": MISSING}, {"spec.checks": {
            "nodeStartupTimeoutSeconds": 600}}),
        defaulted(kind, "cluster label", {"metadata.labels": MISSING}, {"metadata.labels": {CLUSTER_LABEL: "prod"}}),
        accepted(kind, "no startup timeout", {startup: 0}),
        accepted(kind, "shortest startup timeout", {startup: 30}),
        rejected(kind, "startup timeout too short", {startup: 29}, startup),
        rejected(kind, "empty selector", {"spec.selector": {"matchLabels": {}}}, "spec.selector"),
        rejected(kind, "bad selector", {"spec.selector": {"matchLabels": {"b/a/d": "x"}}}, "spec.selector.matchLabels"),
        accepted(kind, "selector that names its cluster", {"spec.selector": {"matchLabels": {CLUSTER_LABEL: "prod"}}}),
        rejected(kind, "selector of another cluster", {"spec.selector": {"matchLabels": {CLUSTER_LABEL: "other"}}},
                "spec.selector"),
        rejected_update(kind, "moved to another cluster", {}, {"spec.clusterName": "other"}, "spec.clusterName"),
        accepted(kind, "limit in percent", {limit: "40%"}),
        accepted(kind, "limit of none", {limit: 0}),
        rejected(kind, "limit that is no number", {limit: "many"}, limit),
        rejected(kind, "negative unhealthyLessThanOrEqualTo", {limit: -3}, limit,
                upstream="accepts it, and never remediates a Machine"),
    ]  # fmt: skip


def _cases_of_drain_rules() -> list[Case]:
    kind = kinds.MACHINE_DRAIN_RULE
    bad = {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}
    good = {"matchLabels": {"a": "b"}}
    return [
        accepted(kind, "in an order", {}),
        accepted(kind, "skipped", {"spec.drain": {"behavior": "Skip"}}),
        rejected(kind, "skipped in an order", {"spec.drain": {"behavior": "Skip", "order": 1}}, "spec.drain.order"),
        rejected(kind, "waited for in an order", {"spec.drain": {"behavior": "WaitCompleted", "order": 1}},
                "spec.drain.order"),
        accepted(kind, "of chosen Machines and pods", {
            "spec.machines": [{"selector": good, "clusterSelector": good}],
            "spec.pods": [{"selector": good, "namespaceSelector": good}]}),
        *(
            rejected(kind, f"bad {name} of {part}", {f"spec.{part}": [{"selector": good}, {name: bad}]},
                    f"spec.{part}[1].{name}.matchExpressions[0].values")
            for part, name in (("machines", "selector"), ("machines", "clusterSelector"),
                               ("pods", "selector"), ("pods", "namespaceSelector"))
        ),
    ]  # fmt: skip


def _cases_of_resource_sets() -> list[Case]:
    kind, selector = kinds.CLUSTER_RESOURCE_SET, "spec.clusterSelector"
    return [
        accepted(kind, "complete", {}),
        defaulted(kind, "strategy", {"spec.strategy": MISSING}, {"spec.strategy": "ApplyOnce"}),
        accepted(kind, "kept applied", {"spec.strategy": "Reconcile"}),
        rejected(kind, "empty selector", {selector: {"matchLabels": {}}}, selector),
        rejected(kind, "bad selector", {selector: {"matchExpressions": [{"key": "a", "operator": "In"}]}},
                f"{selector}.matchExpressions[0].values"),
        rejected_update(kind, "other clusters", {}, {selector: {"matchLabels": {"cni": "y"}}}, selector),
        rejected_update(kind, "other strategy", {}, {"spec.strategy": "Reconcile"}, "spec.strategy"),
        rejected_update(kinds.CLUSTER_RESOURCE_SET_BINDING, "moved to another cluster", {}, {
            "spec.clusterName": "other"}, "spec.clusterName"),
    ]  # fmt: skip


CASES: tuple[Case, ...] = (
    *_cases_of_clusters(),
    *_cases_of_machines(),
    *_cases_of_machine_sets(),
    *_cases_of_machine_deployments(),
    *_cases_of_machine_pools(),
    *_cases_of_health_checks(),
    *_cases_of_drain_rules(),
    *_cases_of_resource_sets(),
)
