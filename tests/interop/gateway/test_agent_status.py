"""The instruction that reports why the cluster agent's pod does not start: kubectl on both API servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from herder.api.management.names import SYSTEM_NAMESPACE
from herder.api.rke.node.plan_secret import PeriodicOutput
from herder.controllers.planner.distributions.agent_status import describe_agent, status_instruction
from tests.support.engines import Engine

OLD, NEW, OTHER = "cattle-cluster-agent-1-a", "cattle-cluster-agent-2-b", "rancher-webhook-1-c"
IMAGE = 'Back-off pulling image "registry.test/agent:none"'
CAUSE = 'Failed to pull image "registry.test/agent:none": not found & "such"\n\tlike + 100%'


@pytest.fixture(autouse=True)
def namespace(engine: Engine) -> Iterator[None]:
    engine.kubectl("create", "namespace", SYSTEM_NAMESPACE, check=False)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    engine.kubectl("create", "-n", SYSTEM_NAMESPACE, "-f", "-", stdin=json.dumps(account), check=False)
    yield
    engine.kubectl("delete", "pods,events", "--all", "--force", "--grace-period=0", "-n", SYSTEM_NAMESPACE)


def create_pod(engine: Engine, name: str, **status: Any) -> None:
    spec = {"containers": [{"name": "agent", "image": "agent:none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    engine.kubectl("create", "-n", SYSTEM_NAMESPACE, "-f", "-", stdin=json.dumps(pod))
    patch = json.dumps({"status": status})
    engine.kubectl("patch", "pod", name, "-n", SYSTEM_NAMESPACE, "--subresource=status", "--type=merge", "-p", patch)


def create_event(engine: Engine, pod: str, number: int, **fields: Any) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod}.{number}"},
        "involvedObject": {"kind": "Pod", "name": pod, "namespace": SYSTEM_NAMESPACE},
        "lastTimestamp": f"2026-01-01T00:00:{number:02d}Z",
        **fields,
    }
    engine.kubectl("create", "-n", SYSTEM_NAMESPACE, "-f", "-", stdin=json.dumps(event))


def container(**state: Any) -> dict[str, Any]:
    return {"name": "agent", "image": "agent:none", "imageID": "", "ready": False, "restartCount": 1, **state}


def report(engine: Engine) -> str:
    done = engine.kubectl(*status_instruction("kubectl").args)
    return describe_agent(PeriodicOutput(stdout=done.stdout.encode(), last_successful_run_time="now"))


def test_an_image_that_cannot_be_pulled(engine: Engine) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": IMAGE}}
    create_pod(engine, NEW, phase="Pending", containerStatuses=[container(state=waiting)])
    create_pod(engine, OTHER, phase="Failed", reason="Evicted", message="another pod")
    create_event(engine, NEW, 1, type="Warning", reason="FailedScheduling", message="no node is ready")
    create_event(engine, NEW, 2, type="Warning", reason="Failed", message=CAUSE)
    create_event(engine, NEW, 3, type="Warning", reason="Failed", message="Error: ErrImagePull")
    create_event(engine, NEW, 4, type="Normal", reason="BackOff", message="Back-off")
    create_event(engine, NEW, 5, reason="Untyped", message="without a type")
    create_event(engine, OTHER, 6, type="Warning", reason="Other", message="of another pod")
    cause = " ".join(CAUSE.split())
    assert report(engine) == f"{NEW}: ImagePullBackOff: {IMAGE}; Failed: {cause}"


def test_a_container_that_crashes(engine: Engine) -> None:
    state = {
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "no CA\n"}},
    }
    create_pod(engine, NEW, phase="Running", containerStatuses=[container(**state)])
    assert report(engine) == f"{NEW}: CrashLoopBackOff: back-off 10s; exit code 3: Error: no CA"


def test_a_pod_without_a_node(engine: Engine) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    create_pod(engine, NEW, phase="Pending", conditions=[unscheduled])
    create_event(engine, NEW, 1, type="Warning", reason="FailedScheduling", message="0/1 nodes")
    assert report(engine) == f"{NEW}: Unschedulable: 0/1 nodes"


def test_no_pod(engine: Engine) -> None:
    assert report(engine) == f"it has no pod in namespace {SYSTEM_NAMESPACE}"
    create_event(engine, "cattle-cluster-agent-5", 1, type="Warning", reason="FailedCreate", message="exceeded quota")
    assert report(engine) == f"it has no pod in namespace {SYSTEM_NAMESPACE}: FailedCreate: exceeded quota"


def test_output_is_bounded(engine: Engine) -> None:
    events = [
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{OLD}.{number}"},
            "involvedObject": {"kind": "Pod", "name": OLD, "namespace": SYSTEM_NAMESPACE},
            "type": "Warning",
            "reason": "Failed",
            "message": "é" * 1000,
        }
        for number in range(60)
    ]
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": events})
    engine.kubectl("create", "-n", SYSTEM_NAMESPACE, "-f", "-", stdin=items)
    output = engine.kubectl(*status_instruction("kubectl").args).stdout
    assert len(output.splitlines()) == 40
    assert len(output) < 256 << 10
