"""Validation of provisioning Clusters: in the embedded server, and by our webhooks on a real kube-apiserver."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from tests.support.api import Api
from tests.support.manager.admission_servers import EARLIER, provisioning_cluster, resource_path, try_to_create

ALLOW_SKIP = "plan.herder.io/allow-version-skip"
CLUSTERS = resource_path(PROVISIONING_CLUSTER)


def pool(**fields: Any) -> dict[str, Any]:
    return {"name": "workers", "machineConfigRef": {"kind": "ShedConfig", "name": "sheds"}, **fields}


@pytest.fixture
async def api(admission_admin: Api) -> Api:
    return await admission_admin.in_new_namespace()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a number that would be dropped": ({"machineGlobalConfig": {"port": 1}}, "machineGlobalConfig.port"),
    "an option that the distribution does not know": (
        {"machineGlobalConfig": {"cni": "calico"}},
        "machineGlobalConfig.cni",
    ),
    "a token in plain sight": ({"machineGlobalConfig": {"token": "abc"}}, "machineGlobalConfig.token"),
    "a list, which schemas take for text of a format": (
        {"registries": {"configs": {"mirror": {"caBundle": []}}}},
        "registries.configs[mirror].caBundle",
    ),
    "more machines than Kubernetes supports": ({"machinePools": [pool(quantity=2**31 - 1)]}, "machinePools"),
    "more machines than a cluster can have": ({"machinePools": [pool(quantity=2_000_000_000)]}, "machinePools"),
    "more machines than a cluster can have, in many pools": (
        {"machinePools": [pool(name=f"p{n}", quantity=1_000) for n in range(6)]},
        "machinePools",
    ),
    "more machines than a cluster can have, by the autoscaler": (
        {"machinePools": [pool(autoscalingMinSize=6_000, autoscalingMaxSize=7_000)]},
        "machinePools",
    ),
    "a name of a snapshot with control characters": (
        {"etcdSnapshotRestore": {"generation": 1, "name": "\x1b[2J"}},
        "etcdSnapshotRestore.name",
    ),
    "a snapshot each second": ({"etcd": {"snapshotScheduleCron": "@every 1s"}}, "etcd.snapshotScheduleCron"),
    "a label that is none": ({"machinePools": [pool(labels={"a": "b c"})]}, "machinePools[0].labels.a"),
}


DIGITS = "9" * 5000
UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "a template that was not rendered": ({"additionalManifest": "{{ x }}\n"}, "additionalManifest"),
    "a manifest whose key is a list": ({"additionalManifest": "[a]: b\n"}, "additionalManifest"),
    "a manifest that nests 100,000 lists": ({"additionalManifest": "[" * 100_000}, "additionalManifest"),
    "a manifest of 100,000 documents": ({"additionalManifest": "---\n" * 100_000}, "additionalManifest"),
    "a step of 5,000 digits": ({"etcd": {"snapshotScheduleCron": f"0/{DIGITS} * * * *"}}, "etcd.snapshotScheduleCron"),
    "a list of 400,000 minutes": (
        {"etcd": {"snapshotScheduleCron": "*," * 400_000 + "* * * * *"}},
        "etcd.snapshotScheduleCron",
    ),
    "an hour of 5,000 digits": ({"etcd": {"snapshotScheduleCron": f"0 {DIGITS} * * *"}}, "etcd.snapshotScheduleCron"),
    "5,000 digits of machines": ({"machinePools": [pool(maxUnhealthy=DIGITS)]}, "machinePools[0].maxUnhealthy"),
    "a range of 5,000 digits": (
        {"machinePools": [pool(unhealthyRange=f"[1-{DIGITS}]")]},
        "machinePools[0].unhealthyRange",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
async def test_malformed_fields_are_rejected_by_name(api: Api, case: str) -> None:
    rke_config, field = UNREADABLE[case]
    answer = await try_to_create(api, PROVISIONING_CLUSTER, provisioning_cluster(**rke_config))
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
    assert [found for _, found, _ in answer.causes] == [f"spec.rkeConfig.{field}"]


async def test_annotations_of_a_pool_cannot_add_machines(api: Api) -> None:
    """Without a quantity, the number of Machines is the lowest size in annotations of the MachineDeployment."""
    size = "cluster.x-k8s.io/cluster-api-autoscaler-node-group"
    marks = {f"{size}-min-size": "6000", f"{size}-max-size": "6000"}
    grown = {name: value for name, value in pool().items() if name != "quantity"} | {
        "machineDeploymentAnnotations": marks
    }
    answer = await try_to_create(api, PROVISIONING_CLUSTER, provisioning_cluster(machinePools=[grown]))
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
    assert "spec.rkeConfig.machinePools" in answer.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("machineDeploymentAnnotations", {"a b!": "x"}),
        ("machineDeploymentAnnotations", {"a": "x" * 270_000}),
        ("labels", {f"label-{each}": "x" * 60 for each in range(4500)}),
        ("taints", [{"key": f"key-{each}", "value": "x" * 60, "effect": "NoSchedule"} for each in range(3000)]),
    ],
    ids=["name", "annotations", "labels", "taints"],
)
async def test_pools_have_only_annotations_that_machines_can_have(api: Api, field: str, value: Any) -> None:
    """The API server rejects others, and the Cluster would not say why nothing happens."""
    answer = await try_to_create(
        api, PROVISIONING_CLUSTER, provisioning_cluster(machinePools=[{**pool(), field: value}])
    )
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
    assert [found for _, found, _ in answer.causes] == [f"spec.rkeConfig.machinePools[0].{field}"]


@pytest.mark.parametrize("case", REFUSED)
async def test_unsupported_settings_are_rejected_on_write(api: Api, case: str) -> None:
    rke_config, field = REFUSED[case]
    answer = await try_to_create(api, PROVISIONING_CLUSTER, provisioning_cluster(**rke_config))
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
    assert [found for _, found, _ in answer.causes] == [f"spec.rkeConfig.{field}"]


async def test_data_directories_of_a_cluster_are_immutable(api: Api) -> None:
    await api.create(CLUSTERS, provisioning_cluster(dataDirectories={"k8sDistro": "/a"}))
    moved = await api.patch(api.at(CLUSTERS, "one"), {"spec": {"rkeConfig": {"dataDirectories": {"k8sDistro": "/b"}}}})
    assert [found for _, found, _ in moved.causes] == ["spec.rkeConfig.dataDirectories.k8sDistro"]


async def test_driver_fields_survive_writes_without_them(api: Api) -> None:
    await api.create(CLUSTERS, provisioning_cluster(machinePools=[pool(dynamicSchemaSpec="{}")]))
    patch = {"spec": {"rkeConfig": {"machinePools": [pool(quantity=2)]}}}
    written = (await api.patch(api.at(CLUSTERS, "one"), patch)).expect(200)
    assert written["spec"]["rkeConfig"]["machinePools"] == [pool(quantity=2, dynamicSchemaSpec="{}")]


@pytest.mark.parametrize("build", ["k3s1", "rke2r1", "kubeadm1", "herder1"])
async def test_a_cluster_does_not_skip_minor_versions(api: Api, build: str) -> None:
    first, last = f"v1.30.14+{build}", f"v1.36.3+{build}"
    cluster = provisioning_cluster()
    cluster["spec"]["kubernetesVersion"] = first
    await api.create(CLUSTERS, cluster)
    resource_path = api.at(CLUSTERS, "one")
    answer = await api.patch(resource_path, {"spec": {"kubernetesVersion": last}})
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
    assert [found for _, found, _ in answer.causes] == ["spec.kubernetesVersion"]
    assert "v1.31, v1.32, v1.33, v1.34, v1.35" in answer.message
    for wrong in ("true", first):
        requested = {"metadata": {"annotations": {ALLOW_SKIP: wrong}}, "spec": {"kubernetesVersion": last}}
        assert (await api.patch(resource_path, requested)).status == 422, (
            "the annotation names the version that it is for"
        )
    (await api.patch(resource_path, {"spec": {"kubernetesVersion": f"v1.31.9+{build}"}})).expect(200)
    requested = {"metadata": {"annotations": {ALLOW_SKIP: last}}, "spec": {"kubernetesVersion": last}}
    (await api.patch(resource_path, requested)).expect(200)


# --- fields without effect ------------------------------------------------------------------------------------------


def of_distribution(build: str, spec: dict[str, Any] | None = None, **rke_config: Any) -> dict[str, Any]:
    cluster = provisioning_cluster(**rke_config)
    cluster["spec"] |= {"kubernetesVersion": f"v1.34.1+{build}", **(spec or {})}
    return cluster


IGNORED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "charts and a directory that the distribution does not have": (
        of_distribution("kubeadm1", chartValues={"a": {"b": "c"}}, dataDirectories={"provisioning": "/data"}),
        ["spec.rkeConfig.chartValues", "spec.rkeConfig.dataDirectories.provisioning"],
    ),
    "charts where there are none": (
        of_distribution("herder1", chartValues={"a": {"b": "c"}}),
        ["spec.rkeConfig.chartValues"],
    ),
    "a field outside rkeConfig": (of_distribution("k3s1", {"enableNetworkPolicy": True}), ["spec.enableNetworkPolicy"]),
    "an entry of a map": (
        of_distribution("kubeadm1", registries={"mirrors": {"docker.io": {"rewrite": {"a": "b"}}}}),
        ["spec.rkeConfig.registries.mirrors[docker.io].rewrite"],
    ),
}


@pytest.mark.parametrize("case", IGNORED)
async def test_values_that_would_be_ignored_are_rejected(api: Api, case: str) -> None:
    cluster, fields = IGNORED[case]
    answer = await try_to_create(api, PROVISIONING_CLUSTER, cluster)
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
    assert [found for _, found, _ in answer.causes] == fields
    distribution = cluster["spec"]["kubernetesVersion"].partition("+")[2].rstrip("1")
    names = {"k3s": "k3s", "rke2r": "rke2", "kubeadm": "kubeadm", "herder": "embedded"}
    assert f"not supported on {names[distribution]}: " in answer.message


@pytest.mark.parametrize("build", ["k3s1", "rke2r1", "kubeadm1", "herder1"])
async def test_empty_values_are_accepted_everywhere(api: Api, build: str) -> None:
    spec = {
        "enableNetworkPolicy": False,
        "localClusterAuthEndpoint": {"enabled": False, "fqdn": "", "caCerts": ""},
        "fleetAgentDeploymentCustomization": {"appendTolerations": [], "overrideAffinity": {}},
        "redeploySystemAgentGeneration": 0,
    }
    off = {
        "chartValues": {"rke2-calico": {}},
        "etcd": {"disableSnapshots": False, "s3": None},
        "etcdSnapshotCreate": {"generation": 0},
        "networking": {"stackPreference": "ipv4"},
        "registries": {"configs": {}, "mirrors": {}},
    }
    await api.create(CLUSTERS, of_distribution(build, spec, **off))


async def test_a_cluster_with_stored_values_stays_editable(admission_admin: Api) -> None:
    """The Cluster was stored before these rules were in force."""
    path = admission_admin.in_namespace(EARLIER).at(CLUSTERS, "one")
    (await admission_admin.patch(path, {"spec": {"rkeConfig": {"provisionGeneration": 2}}})).expect(200)
    changed = {"spec": {"rkeConfig": {"networking": {"stackPreference": "dual"}}}}
    answer = await admission_admin.patch(path, changed)
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
    assert [found for _, found, _ in answer.causes] == ["spec.rkeConfig.networking.stackPreference"]
    (await admission_admin.patch(path, {"spec": {"enableNetworkPolicy": None}})).expect(200)
    again = await admission_admin.patch(path, {"spec": {"enableNetworkPolicy": True}})
    assert [found for _, found, _ in again.causes] == ["spec.enableNetworkPolicy"], "it was removed meanwhile"
