"""Server-owned fields and allocations over the lifetime of an object."""

from __future__ import annotations

import base64
import copy
import ipaddress
from typing import Any

import pytest

from herder.engine.apiserver.builtin.conversions import convert_autoscalers, convert_events
from herder.engine.apiserver.builtin.strategies.services import CLUSTER_RANGE, NODE_PORTS
from herder.engine.apiserver.builtin.strategies.workload.pods import qos_class
from herder.engine.meta.errors import Invalid
from tests.unit.engine.apiserver.builtin.driving import context, create, resource_of, update
from tests.unit.engine.apiserver.builtin.refusals import _job, _secret, _service, _with
from tests.unit.engine.apiserver.builtin.samples import SAMPLES

SAMPLE = {(sample["kind"], sample["metadata"]["name"]): sample for sample in SAMPLES}
POD = SAMPLE["Pod", "pod"]


# --- services ---------------------------------------------------------------------------------------------------


def test_a_service_gets_an_address_from_the_range() -> None:
    spec = create(_service(ports=[{"port": 80}]))["spec"]
    assert ipaddress.ip_address(spec["clusterIP"]) in CLUSTER_RANGE
    assert spec["clusterIPs"] == [spec["clusterIP"]]
    assert spec["ipFamilies"] == ["IPv4"]
    assert spec["ipFamilyPolicy"] == "SingleStack"


def test_node_ports_are_allocated_once_each() -> None:
    ports = [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}, {"port": 82, "name": "c", "nodePort": 30001}]
    node_ports = [port["nodePort"] for port in create(_service(type="NodePort", ports=ports))["spec"]["ports"]]
    assert node_ports[2] == 30001
    assert len(set(node_ports)) == 3
    assert all(port in NODE_PORTS for port in node_ports)


def test_a_node_port_out_of_range_is_rejected() -> None:
    with pytest.raises(Invalid, match="The range of valid ports is 30000-32767"):
        create(_service(type="NodePort", ports=[{"port": 1, "nodePort": 80}]))


def test_an_update_without_allocated_fields_keeps_them() -> None:
    old = create(_service(type="NodePort", ports=[{"port": 80}]))
    new = update(old, _service(type="NodePort", ports=[{"port": 80}], selector={"a": "b"}))
    for key in ("clusterIP", "clusterIPs", "ports"):
        assert new["spec"][key] == old["spec"][key]


def test_a_service_that_becomes_external_name_releases_its_cluster_ip() -> None:
    old = create(_service(ports=[{"port": 80}]))
    new = update(old, _service(type="ExternalName", externalName="example.com"))
    assert "clusterIP" not in new["spec"]


def test_a_service_that_becomes_cluster_ip_releases_its_node_ports() -> None:
    old = create(_service(type="NodePort", ports=[{"port": 80}]))
    wanted = copy.deepcopy(old)
    wanted["spec"]["type"] = "ClusterIP"
    new = update(old, wanted)
    assert "nodePort" not in new["spec"]["ports"][0]
    assert "externalTrafficPolicy" not in new["spec"]


# --- namespaces, pods, jobs -------------------------------------------------------------------------------------


def test_a_namespace_is_removed_once_it_has_no_finalizers() -> None:
    strategy = resource_of(SAMPLE["Namespace", "ns"]).strategy
    namespace = create(SAMPLE["Namespace", "ns"])
    assert not strategy.removable(namespace)
    changed = update(namespace, _with(namespace, "spec/finalizers", []))
    assert changed["spec"]["finalizers"] == ["kubernetes"]
    strategy.prepare_delete(namespace, context())
    assert namespace["status"]["phase"] == "Terminating"
    namespace["spec"].pop("finalizers")
    assert strategy.removable(namespace)


@pytest.mark.parametrize(
    ("spec", "phase", "requested", "seconds"),
    [
        ({}, "Pending", None, 0),
        ({"nodeName": "n"}, "Running", None, 30),
        ({"nodeName": "n"}, "Running", 0, 0),
        ({"nodeName": "n"}, "Succeeded", None, 0),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 5}, "Running", None, 5),
    ],
)
def test_the_grace_period_of_a_pod(spec: dict[str, Any], phase: str, requested: int | None, seconds: int) -> None:
    assert resource_of(POD).strategy.grace_period({"spec": spec, "status": {"phase": phase}}, requested) == seconds


def test_images_and_added_tolerations_of_a_pod_may_change() -> None:
    pod = create(_with(POD, "spec/tolerations", [{"key": "a", "operator": "Exists"}]))
    changed = _with(pod, "spec/containers/0/image", "other")
    changed["spec"]["tolerations"] = [*changed["spec"]["tolerations"], {"key": "b", "operator": "Exists"}]
    assert update(pod, changed)["spec"]["containers"][0]["image"] == "other"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/nodeName", "x"),
        ("spec/containers/0/args", ["x"]),
        ("spec/restartPolicy", "Never"),
        ("spec/hostname", "a"),
    ],
)
def test_other_fields_of_a_pod_are_immutable(path: str, value: Any) -> None:
    pod = create(POD)
    with pytest.raises(Invalid, match="pod updates may not change fields other than"):
        update(pod, _with(pod, path, value))


def test_a_status_is_written_only_through_its_subresource() -> None:
    pod = create(POD)
    wanted = _with(pod, "status/phase", "Running")
    assert update(pod, wanted)["status"]["phase"] == "Pending"
    assert update(pod, wanted, subresource="status")["status"]["phase"] == "Running"


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}}, "Burstable"),
        ({"limits": {"example.com/x": "1"}, "requests": {"example.com/x": "1"}}, "BestEffort"),
    ],
)
def test_quality_of_service(resources: dict[str, Any], quality: str) -> None:
    assert qos_class({"containers": [{"resources": resources}]}) == quality


def test_scheduling_fields_of_a_suspended_job_may_change() -> None:
    job = create(_job(suspend=True))
    assert update(job, _with(job, "spec/template/spec/nodeSelector", {"a": "b"}))
    with pytest.raises(Invalid, match=r"spec\.template\.spec: Invalid value.*field is immutable"):
        update(job, _with(job, "spec/template/spec/containers/0/image", "other"))


def test_parallelism_and_suspension_of_a_job_may_change() -> None:
    job = create(_job())
    changed = update(job, _with(_with(job, "spec/parallelism", 5), "spec/suspend", True))
    assert changed["spec"]["parallelism"] == 5


def test_a_certificate_signing_request_records_the_requesting_user() -> None:
    request = base64.b64encode(b"-----BEGIN CERTIFICATE REQUEST-----\n").decode()
    spec = {"request": request, "signerName": "a.example.com/b", "usages": ["client auth"], "username": "liar"}
    created = create(
        {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": "c"},
            "spec": spec,
        }
    )
    assert created["spec"]["username"] == "admin"
    assert created["spec"]["groups"] == ["system:masters"]


def test_string_data_is_merged_into_data() -> None:
    created = create(_secret("Opaque", a="b"))
    assert created["data"] == {"a": "Yg=="}
    assert "stringData" not in created


# --- selectable fields ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        ("Pod", "pod", {"spec.nodeName": "", "status.phase": "Pending", "spec.restartPolicy": "Always"}),
        ("Secret", "secret", {"type": "Opaque"}),
        ("Namespace", "ns", {"status.phase": "Active"}),
        ("Node", "node", {"spec.unschedulable": "false"}),
        ("ReplicaSet", "replicaset", {"status.replicas": "0"}),
        ("Job", "job", {"status.successful": "0"}),
        ("Service", "svc-headless", {"spec.clusterIP": "None", "spec.type": "ClusterIP"}),
        ("Event", "event", {"involvedObject.name": "p", "involvedObject.kind": "Pod", "reason": "", "source": ""}),
    ],
)
def test_selectable_fields(kind: str, name: str, fields: dict[str, str]) -> None:
    created = create(SAMPLE[kind, name])
    assert fields.items() <= resource_of(created).strategy.fields(created).items()


# --- conversions ------------------------------------------------------------------------------------------------


async def test_events_are_converted_between_both_api_groups() -> None:
    core = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "p"},
        "message": "hello",
        "reason": "Because",
        "source": {"component": "c"},
        "firstTimestamp": "2020-01-01T00:00:00Z",
        "lastTimestamp": None,
        "eventTime": None,
        "count": 2,
        "reportingComponent": "",
        "reportingInstance": "",
    }
    (new,) = await convert_events([core], "events.k8s.io/v1")
    assert new["regarding"] == {"kind": "Pod", "name": "p"}
    assert new["note"] == "hello"
    assert new["deprecatedCount"] == 2
    assert (await convert_events([new], "v1"))[0] == core


async def test_autoscalers_keep_metrics_and_behavior_through_v1() -> None:
    created = create(SAMPLE["HorizontalPodAutoscaler", "hpa"])
    created["spec"]["metrics"].append(
        {"type": "External", "external": {"metric": {"name": "x"}, "target": {"type": "Value"}}}
    )
    (old,) = await convert_autoscalers([created], "autoscaling/v1")
    assert old["spec"]["targetCPUUtilizationPercentage"] == 80
    assert "metrics" not in old["spec"]
    (back,) = await convert_autoscalers([old], "autoscaling/v2")
    assert back["spec"]["behavior"] == created["spec"]["behavior"]
    assert sorted(metric["type"] for metric in back["spec"]["metrics"]) == ["External", "Resource"]
