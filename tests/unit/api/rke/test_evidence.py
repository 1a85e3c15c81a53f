"""Which line of a failed plan's output names the cause."""

from __future__ import annotations

import pytest

from herder.api.rke.node.plan_secret import Evidence

KLOG = 'E1119 06:38:04.451074     451 remote_runtime.go:1177] "RuntimeConfig from runtime service failed"'
KUBEADM = "error: error execution phase wait-control-plane: failed while waiting for the kube-apiserver"
K3S = 'time="2026-01-01T12:00:00Z" level=fatal msg="starting kubernetes: port 6443 is in use"'


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("", ""),
        ("no space left on device\nwarning: cleaned up", "no space left on device"),
        (f"{KLOG}\n[init] Using Kubernetes version: v1.36.3\n\t[WARNING Swap]: on\n{KUBEADM}\n", KUBEADM),
        (f'time="2026-01-01T12:00:00Z" level=info msg="Starting k3s"\n{K3S}', K3S),
        (f"\n{KLOG}\n", KLOG),
    ],
    ids=["no output", "the first line", "kubeadm", "k3s", "nothing else"],
)
def test_the_cause_is_not_a_warning(output: str, cause: str) -> None:
    assert Evidence(tail=output).cause == cause
