"""Built-in kinds: defaults, immutable fields, quotas and limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.differences import by_engine
from tests.conformance.objects import config_map, deployment, job, pod, secret, service
from tests.support.api import TIMEOUT, Api
from tests.support.engines import Engine, unique

JOBS, CRONJOBS = "batch/v1/jobs", "batch/v1/cronjobs"
LEASES = "coordination.k8s.io/v1/leases"
DRY = "?dryRun=All"


# --- defaults -------------------------------------------------------------------------------------------------------


async def test_defaults_of_a_pod(api: Api) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    created = await api.create("pods", pod("a"))
    spec, (container,) = created["spec"], created["spec"]["containers"]
    assert spec["restartPolicy"] == "Always"
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["serviceAccountName"] == spec["serviceAccount"] == "default"
    assert spec["enableServiceLinks"] is True
    assert spec["securityContext"] == {}
    assert spec["preemptionPolicy"] == "PreemptLowerPriority"
    assert spec["priority"] == 0
    assert {t["key"] for t in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    assert container["imagePullPolicy"] == "Always"
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert container["terminationMessagePolicy"] == "File"
    assert created["status"]["phase"] == "Pending"
    assert created["status"]["qosClass"] == "BestEffort"


async def test_a_pod_gets_the_token_of_its_service_account(api: Api) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    created = await api.create("pods", pod("a", automountServiceAccountToken=True))
    (volume,) = created["spec"]["volumes"]
    assert volume["name"].startswith("kube-api-access-")
    kinds = [next(iter(source)) for source in volume["projected"]["sources"]]
    assert kinds == ["serviceAccountToken", "configMap", "downwardAPI"]
    (mount,) = created["spec"]["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert mount["readOnly"] is True


async def test_a_pod_needs_an_existing_service_account(api: Api) -> None:
    answer = await api.post(api.at("pods"), pod("a", serviceAccountName="nobody"))
    assert (answer.status, answer.reason) == (403, "Forbidden")
    message = f'error looking up service account {api.namespace}/nobody: serviceaccount "nobody" not found'
    assert message in answer.message


@pytest.mark.parametrize(
    ("image", "policy"),
    [("a", "Always"), ("a:latest", "Always"), ("a:1", "IfNotPresent"), ("a@sha256:" + "0" * 64, "IfNotPresent")],
)
async def test_the_pull_policy_follows_the_tag(api: Api, image: str, policy: str) -> None:
    body = {"metadata": {"name": "a"}, "template": {"spec": {"containers": [{"name": "a", "image": image}]}}}
    created = await api.create("podtemplates", body)
    assert created["template"]["spec"]["containers"][0]["imagePullPolicy"] == policy


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
    ],
)
async def test_qos_class_follows_resources(api: Api, resources: Any, quality: str) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    container = {"name": "a", "image": "b", "resources": resources}
    created = (await api.post(api.at("pods") + DRY, pod("a", containers=[container]))).expect(201)
    assert created["status"]["qosClass"] == quality
    if "limits" in resources:
        assert created["spec"]["containers"][0]["resources"]["requests"] == resources["limits"]


async def test_quantities_are_normalized(api: Api) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    container = {"name": "a", "image": "b", "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}}}
    created = (await api.post(api.at("pods") + DRY, pod("a", containers=[container]))).expect(201)
    assert created["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "500m", "memory": "1Gi"}


async def test_defaults_of_a_deployment(api: Api) -> None:
    spec = (await api.create("apps/v1/deployments", deployment("a")))["spec"]
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert spec["revisionHistoryLimit"] == 10
    assert spec["progressDeadlineSeconds"] == 600


async def test_defaults_of_a_job(api: Api) -> None:
    created = await api.create(JOBS, job("a"))
    spec = created["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (1, 1, 6)
    assert (spec["completionMode"], spec["manualSelector"]) == ("NonIndexed", False)
    assert spec["podReplacementPolicy"] == "TerminatingOrFailed"
    uid = created["metadata"]["uid"]
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert spec["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "a",
        "controller-uid": uid,
        "job-name": "a",
    }


async def test_defaults_of_a_cron_job(api: Api) -> None:
    body = {
        "metadata": {"name": "a"},
        "spec": {"schedule": "* * * * *", "suspend": True, "jobTemplate": {"spec": job("a")["spec"]}},
    }
    spec = (await api.create(CRONJOBS, body))["spec"]
    assert spec["concurrencyPolicy"] == "Allow"
    assert (spec["successfulJobsHistoryLimit"], spec["failedJobsHistoryLimit"]) == (3, 1)


async def test_defaults_of_a_service(api: Api) -> None:
    spec = (await api.create("services", service("a")))["spec"]
    assert spec["type"] == "ClusterIP"
    assert spec["sessionAffinity"] == "None"
    assert spec["internalTrafficPolicy"] == "Cluster"
    assert spec["ipFamilyPolicy"] == "SingleStack"
    assert spec["ports"] == [{"protocol": "TCP", "port": 80, "targetPort": 80}]
    assert spec["clusterIPs"] == [spec["clusterIP"]]
    assert spec["clusterIP"].startswith("10.")


async def test_services_get_unique_addresses(engine: Engine, api: Api) -> None:
    first = await api.create("services", service("a"))
    second = await api.create("services", service("b"))
    assert first["spec"]["clusterIP"] != second["spec"]["clusterIP"]
    requested = service("c", clusterIP=first["spec"]["clusterIP"])
    answer = await api.post(api.at("services"), requested)
    assert answer.status == by_engine(engine, "service-addresses", real=422, embedded=201)


async def test_a_headless_service_has_no_address(api: Api) -> None:
    created = await api.create("services", service("a", clusterIP="None"))
    assert created["spec"]["clusterIP"] == "None"


async def test_node_ports_are_allocated(api: Api) -> None:
    created = await api.create("services", service("a", type="NodePort"))
    assert 30000 <= created["spec"]["ports"][0]["nodePort"] <= 32767
    assert created["spec"]["externalTrafficPolicy"] == "Cluster"


async def test_the_kubernetes_service_exists(api: Api) -> None:
    found = await api.read("/api/v1/namespaces/default/services/kubernetes")
    assert found["spec"]["ports"][0]["name"] == "https"
    assert found["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}


async def test_defaults_of_network_policies(api: Api) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}}
    spec = (await api.create("networking.k8s.io/v1/networkpolicies", body))["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"][0]["ports"][0]["protocol"] == "TCP"


async def test_string_data_of_a_secret_is_stored_as_data(api: Api) -> None:
    body = {"metadata": {"name": "a"}, "data": {"x": "b2xk"}, "stringData": {"x": "new", "y": "too"}}
    created = await api.create("secrets", body)
    assert created["data"] == {"x": "bmV3", "y": "dG9v"}
    assert "stringData" not in created


# --- immutable fields -------------------------------------------------------------------------------------------------


async def assert_immutable(api: Api, url: str, patch: Any, cause: str) -> None:
    answer = await api.patch(url, patch)
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
    assert cause in answer.message


async def test_the_type_of_a_secret_is_immutable(api: Api) -> None:
    await api.create("secrets", secret("a"))
    await assert_immutable(
        api, api.at("secrets", "a"), {"type": "other"}, 'type: Invalid value: "other": field is immutable'
    )


@pytest.mark.parametrize("kind", ["secrets", "configmaps"])
async def test_immutable_data_cannot_be_changed(api: Api, kind: str) -> None:
    await api.create(kind, {"metadata": {"name": "a"}, "immutable": True})
    value = "MQ==" if kind == "secrets" else "1"
    cause = "data: Forbidden: field is immutable when `immutable` is set"
    await assert_immutable(api, api.at(kind, "a"), {"data": {"x": value}}, cause)
    cause = "immutable: Forbidden: field is immutable when `immutable` is set"
    await assert_immutable(api, api.at(kind, "a"), {"immutable": False}, cause)


async def test_the_selector_of_a_deployment_is_immutable(api: Api) -> None:
    await api.create("apps/v1/deployments", deployment("a"))
    patch = {"spec": {"selector": {"matchLabels": {"app": "b"}}, "template": {"metadata": {"labels": {"app": "b"}}}}}
    await assert_immutable(api, api.at("apps/v1/deployments", "a"), patch, "spec.selector: Invalid value: ")


async def test_the_template_of_a_job_is_immutable(api: Api) -> None:
    await api.create(JOBS, job("a"))
    await assert_immutable(
        api, api.at(JOBS, "a"), {"spec": {"completionMode": "Indexed"}}, 'spec.completionMode: Invalid value: "Indexed"'
    )
    image = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "other"}]}}}}
    await assert_immutable(api, api.at(JOBS, "a"), image, "spec.template.spec: Invalid value: ")


async def test_the_cluster_ip_of_a_service_is_immutable(api: Api) -> None:
    await api.create("services", service("a"))
    patch = {"spec": {"clusterIP": "10.96.77.77", "clusterIPs": ["10.96.77.77"]}}
    await assert_immutable(api, api.at("services", "a"), patch, 'spec.clusterIPs[0]: Invalid value: ["10.96.77.77"]: ')


async def test_a_storage_class_is_immutable(api: Api) -> None:
    name = unique("class")
    resource = "storage.k8s.io/v1/storageclasses"
    created = await api.create_cluster(resource, {"metadata": {"name": name}, "provisioner": "example.com/x"})
    assert (created["reclaimPolicy"], created["volumeBindingMode"]) == ("Delete", "Immediate")
    url = api.cluster(resource, name)
    answer = await api.patch(url, {"provisioner": "example.com/y"})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert 'provisioner: Invalid value: "example.com/y": field is immutable' in answer.message
    await api.delete(url)


async def test_the_value_of_a_priority_class_is_immutable(api: Api) -> None:
    name = unique("prio")
    resource = "scheduling.k8s.io/v1/priorityclasses"
    await api.create_cluster(resource, {"metadata": {"name": name}, "value": 5})
    answer = await api.patch(api.cluster(resource, name), {"value": 6})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "value: Forbidden: may not be changed in an update." in answer.message
    await api.delete(api.cluster(resource, name))


async def assert_rejected(api: Api, resource: str, obj: Any, cause: str) -> None:
    answer = await api.post(api.at(resource) + DRY, obj)
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
    assert cause in answer.message


# --- events, quotas, limits ---------------------------------------------------------------------------------------


async def test_events_are_the_same_objects_in_both_groups(api: Api) -> None:
    involved = {"kind": "Pod", "namespace": api.namespace, "name": "x"}
    body = {
        "metadata": {"name": "a"},
        "involvedObject": involved,
        "reason": "Because",
        "message": "hello",
        "type": "Normal",
    }
    await api.create("events", body)
    found = await api.read(api.at("events.k8s.io/v1/events", "a"))
    assert (found["regarding"]["name"], found["note"], found["reason"]) == ("x", "hello", "Because")
    assert await api.names(api.at("events") + "?fieldSelector=involvedObject.name%3Dx") == ["a"]
    assert await api.names(api.at("events") + "?fieldSelector=reason%3DOther") == []


async def test_an_event_must_be_in_the_namespace_of_its_object(api: Api) -> None:
    body = {"metadata": {"name": "a"}, "involvedObject": {"kind": "Pod", "namespace": "elsewhere", "name": "x"}}
    await assert_rejected(api, "events", body, "involvedObject.namespace: Invalid value: ")


async def test_a_quota_is_enforced(api: Api) -> None:
    body = {"metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": "1"}}}
    await api.create("resourcequotas", body)
    await api.until_object(api.at("resourcequotas", "q"), lambda quota: "used" in (quota.get("status") or {}))
    await api.create("secrets", secret("one"))
    answer = await api.post(api.at("secrets"), secret("two"))
    assert answer.failure == (
        403,
        "Forbidden",
        'secrets "two" is forbidden: exceeded quota: q, requested: count/secrets=1, used: count/secrets=1, '
        "limited: count/secrets=1",
    )


async def test_limit_ranges_default_and_reject(api: Api) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    limit = {"type": "Container", "default": {"cpu": "200m"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1"}}
    await api.create("limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [limit]}})
    created: Any = {"spec": {"containers": [{"resources": {}}]}}
    async with asyncio.timeout(TIMEOUT):
        while not created["spec"]["containers"][0]["resources"]:
            created = (await api.post(api.at("pods") + DRY, pod("a"))).expect(201)
    assert created["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "200m"}, "requests": {"cpu": "100m"}}
    big = pod("b", containers=[{"name": "a", "image": "b", "resources": {"limits": {"cpu": "2"}}}])
    answer = await api.post(api.at("pods"), big)
    assert (answer.status, answer.reason) == (403, "Forbidden")
    assert "maximum cpu usage per Container is 1, but limit is 2" in answer.message


async def test_a_disruption_budget_blocks_evictions(api: Api) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    obj = pod("a")
    obj["metadata"]["labels"] = {"app": "x"}
    await api.create("pods", obj)
    await api.patch(api.at("pods", "a", "status"), {"status": {"phase": "Running"}})
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
    await api.create("policy/v1/poddisruptionbudgets", budget)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    answer = await api.post(api.at("pods", "a", "eviction"), eviction)
    assert (answer.status, answer.reason) == (429, "TooManyRequests")


async def test_config_maps_take_binary_data(api: Api) -> None:
    obj = config_map("a", x="1") | {"binaryData": {"y": "AAEC"}}
    assert (await api.create("configmaps", obj))["binaryData"] == {"y": "AAEC"}


async def test_allocatable_of_a_node_defaults_to_its_capacity(engine: Engine, api: Api) -> None:
    name = unique("node")
    created = await api.create_cluster("nodes", {"metadata": {"name": name}, "status": {"capacity": {"cpu": "2"}}})
    assert created["status"]["allocatable"] == {"cpu": "2"}
    taints = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    assert created["spec"].get("taints") == by_engine(engine, "new-nodes", real=taints, embedded=None)
    await api.delete(api.cluster("nodes", name))
