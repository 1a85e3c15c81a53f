"""The output of kubectl commands that read."""

from __future__ import annotations

import pytest

from tests.interop.kubectl.side_by_side import SideBySide

EVERY_KIND = (
    "configmaps", "secrets", "pods", "deployments", "replicasets", "statefulsets", "daemonsets", "jobs", "cronjobs",
    "services", "ingresses", "networkpolicies", "poddisruptionbudgets", "persistentvolumeclaims", "resourcequotas",
    "limitranges", "serviceaccounts", "roles", "rolebindings", "leases", "horizontalpodautoscalers", "fences",
)  # fmt: skip
DEFAULT_RBAC = "kubernetes.io/bootstrapping=rbac-defaults"


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_get_wide(both: SideBySide, kind: str) -> None:
    assert "NAME" in both.kubectl("get", kind, "-o", "wide")


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_describe(both: SideBySide, kind: str) -> None:
    assert "Name:" in both.kubectl("describe", kind)


@pytest.mark.parametrize(
    "arguments",
    [
        "get all",
        "get pasture",
        "get pods,deployments,fn",
        "get pod sheep -o yaml",
        "get pod sheep -o yaml --show-managed-fields",
        "get deployment flock -o yaml",
        "get job shear -o yaml",
        "get fence north -o json",
        "get secret password -o jsonpath={.data.password}",
        "get service barn -o yaml",
        "get configmaps -o name",
        "get fences -o custom-columns=NAME:.metadata.name,POSTS:.spec.posts",
        "get pods --show-labels -L app",
        "get configmaps -l app=meadow",
        "get configmaps -l app in (meadow,desert),!absent",
        "get pods --field-selector=status.phase=Pending",
        "get pods --field-selector=spec.nodeName=none",
        "get secrets --field-selector=type=Opaque",
        "get configmaps --sort-by=.metadata.name --no-headers",
        "get configmaps --chunk-size=1",
        "get fence north -o go-template={{.spec.posts}}",
        "get deployment flock --subresource=scale",
        "get fence north --subresource=scale",
        "get fence north --subresource=scale -o yaml",
        "get deployment flock --subresource=status -o jsonpath={.kind}",
        "get namespaces -l kubernetes.io/metadata.name=default",
        "get nothing",
        "get pods nothing",
        "get pods nothing --ignore-not-found",
        "get pods --field-selector=spec.nothing=1",
        "get configmaps -l a=b=c",
        "get --raw /version",
        "get --raw /healthz",
        "get --raw /readyz",
        "get --raw /api/v1/namespaces/none/pods?limit=x",
        "get --raw /nothing",
        "get --raw /api/v1/pods/nobody",
        "get all -A -l nobody=has",
        "get pods sheep nothing",
        "get pod/sheep configmap/words -o name",
        "get pod sheep -o jsonpath-as-json={.spec.containers[*].name}",
        "get events --for pod/sheep",
        "events --types=Warning",
        f"get clusterroles -l {DEFAULT_RBAC} -o wide",
        f"get clusterrolebindings -l {DEFAULT_RBAC} -o wide",
        f"get roles,rolebindings -A -l {DEFAULT_RBAC}",
        "get priorityclasses system-cluster-critical system-node-critical -o wide",
        "get apiservices",
        "get flowschemas",
        "get prioritylevelconfigurations",
        "get componentstatuses",
        "get servicecidrs",
        "describe namespace default",
        "describe clusterrole view",
        "describe clusterrolebinding cluster-admin",
        "describe crd fences.pasture.example.com",
        "describe pod nothing",
        "explain pods",
        "explain pods.spec.containers --recursive",
        "explain deployment.spec.strategy",
        "explain job.spec.podFailurePolicy",
        "explain fences",
        "explain fences --recursive",
        "explain fence.spec.gates",
        "explain fence.spec.nothing",
        "explain nothing",
        "explain configmap --output=plaintext-openapiv2",
        "explain ingress --api-version=networking.k8s.io/v1",
        "events",
        "get events -o wide",
        "rollout status deployment/flock --timeout=1s --watch=false",
        "rollout history deployment/flock",
        "rollout status statefulset/herd --watch=false",
        "logs sheep",
        "top pods",
        "top nodes",
        "api-versions",
        "api-resources --sort-by=name --no-headers",
        "api-resources --api-group=apps -o wide",
        "api-resources --namespaced=false --verbs=list,get -o name",
        "api-resources --categories=all",
        "cluster-info",
        "version",
        "version -o yaml",
        "auth whoami",
        "auth can-i create pods",
        "auth can-i --list --as=jane",
        "auth can-i list pods --as=jane",
        "auth can-i get deployments.apps/flock --as=jane",
        "auth can-i delete pods --as=jane",
        "auth can-i get /healthz --as=jane",
        "auth can-i get pods/log --as=system:serviceaccount:default:default",
        "get pods --as=jane",
        "get secrets --as=jane",
        "get nodes --as=system:serviceaccount:default:default",
        "get pods --as=jane --as-group=system:masters --as-uid=1",
    ],
)
def test_reading(both: SideBySide, arguments: str) -> None:
    both.kubectl(*_split(arguments))


def _split(arguments: str) -> list[str]:
    if " -l app in " in arguments:
        first, _, selector = arguments.partition(" -l ")
        return [*first.split(), "-l", selector]
    return arguments.split()
