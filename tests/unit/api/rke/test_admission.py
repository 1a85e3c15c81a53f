"""Admission rules of provisioned clusters, without an API server."""

from __future__ import annotations

import base64
import copy
import time
from typing import Any, NamedTuple

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.admission import RULES
from herder.api.rke.admission.config import is_secret_name
from herder.engine.meta.kinds import Object
from tests.support.builders import new_condition, new_object

ADMISSION = RULES[PROVISIONING_CLUSTER]
CANARY = "sekrit-canary-7431"


def cluster(*, name: str = "meadow", spec: Object | None = None, **rke_config: Any) -> Object:
    fields = {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": rke_config, **(spec or {})}
    return new_object(PROVISIONING_CLUSTER, name, "fleet-default", spec=fields)


def pool(name: str = "workers", **fields: Any) -> Object:
    return {"name": name, "machineConfigRef": {"kind": "ShedConfig", "name": "sheds"}, "workerRole": True, **fields}


def server_pool(name: str = "servers", **fields: Any) -> Object:
    return pool(name, etcdRole=True, controlPlaneRole=True, **fields)


def up_to_date(obj: Object, observed: int = 2) -> Object:
    """The cluster as stored, whose machines have the spec of the observed generation."""
    status = {"observedGeneration": observed, "conditions": [new_condition("Updated")]}
    return {**obj, "metadata": {**obj["metadata"], "generation": 2}, "status": status}


RKE2, KUBEADM, EMBEDDED = ({"kubernetesVersion": f"v1.34.1+{build}"} for build in ("rke2r1", "kubeadm1", "herder1"))
IMPORTED = cluster() | {"spec": {}}


class Case(NamedTuple):
    new: Object
    fields: tuple[str, ...] = ()  # that are rejected
    old: Object | None = None


STRATEGY, ETCD, MANIFEST = (f"spec.rkeConfig.{part}" for part in ("upgradeStrategy", "etcd", "additionalManifest"))
RESTORE = "spec.rkeConfig.etcdSnapshotRestore"


def restoring(name: str) -> Object:
    return cluster(etcdSnapshotRestore={"generation": 1, "name": name})


def with_drain_options(**options: Any) -> Object:
    return cluster(upgradeStrategy={"workerDrainOptions": options})


def with_ca_bundle(content: str) -> Object:
    encoded = base64.b64encode(content.encode()).decode()
    return cluster(registries={"configs": {"r.example": {"caBundle": encoded}}})


GLOBAL, SELECTED = "spec.rkeConfig.machineGlobalConfig", "spec.rkeConfig.machineSelectorConfig[1].config"
POOL = "spec.rkeConfig.machinePools[0]"
BUNDLE = "spec.rkeConfig.registries.configs[r.example].caBundle"
OPERATIONS: dict[str, Case] = {
    "the grace period of pods may be used": Case(with_drain_options(gracePeriod=-1, timeout=0)),
    "a grace period is at least -1": Case(
        with_drain_options(gracePeriod=-2), (f"{STRATEGY}.workerDrainOptions.gracePeriod",)
    ),
    "a drain timeout is not negative": Case(
        with_drain_options(timeout=-1), (f"{STRATEGY}.workerDrainOptions.timeout",)
    ),
    "a drain hook needs an annotation": Case(
        with_drain_options(preDrainHooks=[{"annotation": "a"}, {}]),
        (f"{STRATEGY}.workerDrainOptions.preDrainHooks[1].annotation",),
    ),
    "invalid drain options that were stored may stay": Case(
        with_drain_options(timeout=-1), (), with_drain_options(timeout=-1)
    ),
    "a valid snapshot schedule": Case(cluster(etcd={"snapshotScheduleCron": "0 */6 * * *"})),
    "an invalid snapshot schedule": Case(
        cluster(etcd={"snapshotScheduleCron": "sometimes"}), (f"{ETCD}.snapshotScheduleCron",)
    ),
    "a time zone that K3s uses": Case(cluster(etcd={"snapshotScheduleCron": "TZ=Europe/Berlin 0 0 * * *"})),
    "a time zone of a schedule that the manager carries out": Case(
        cluster(spec=KUBEADM, etcd={"snapshotScheduleCron": "TZ=Europe/Berlin 0 0 * * *"}),
        (f"{ETCD}.snapshotScheduleCron",),
    ),
    "snapshots every minute": Case(cluster(spec=EMBEDDED, etcd={"snapshotScheduleCron": "@every 1m"})),
    "snapshots every few seconds": Case(
        cluster(spec=EMBEDDED, etcd={"snapshotScheduleCron": "@every 59s"}), (f"{ETCD}.snapshotScheduleCron",)
    ),
    "snapshots every second of K3s": Case(
        cluster(etcd={"snapshotScheduleCron": "@every 1s"}), (f"{ETCD}.snapshotScheduleCron",)
    ),
    "snapshots every few seconds, with a time zone": Case(
        cluster(etcd={"snapshotScheduleCron": "CRON_TZ=UTC @every 0m59.9s"}), (f"{ETCD}.snapshotScheduleCron",)
    ),
    "snapshots every minute of K3s": Case(cluster(etcd={"snapshotScheduleCron": "TZ=UTC @every 60s"})),
    "frequent snapshots that were stored may stay": Case(
        cluster(etcd={"snapshotScheduleCron": "@every 1s"}), (), cluster(etcd={"snapshotScheduleCron": "@every 1s"})
    ),
    "a snapshot to restore": Case(restoring("meadow-local-on-demand.1-1a2b3c")),
    "a snapshot of another namespace": Case(restoring("fleet-local/meadow"), (f"{RESTORE}.name",)),
    "control characters in the name of a snapshot": Case(restoring("\x1b[2Jmeadow"), (f"{RESTORE}.name",)),
    "a long name of a snapshot": Case(restoring("x" * 254), (f"{RESTORE}.name",)),
    "a name of a snapshot that was stored may stay": Case(restoring("x" * 254), (), restoring("x" * 254)),
    "services with certificates": Case(
        cluster(spec=KUBEADM, rotateCertificates={"generation": 1, "services": ["etcd", "kubelet"]})
    ),
    "services without certificates on this distribution": Case(
        cluster(spec=KUBEADM, rotateCertificates={"generation": 1, "services": ["etcd", "kube-proxy", "k3s-server"]}),
        tuple(f"spec.rkeConfig.rotateCertificates.services[{position}]" for position in (1, 2)),
    ),
    "services beside certificate authorities": Case(
        cluster(rotateCertificates={"generation": 1, "services": ["etcd"], "caCertificates": True}),
        ("spec.rkeConfig.rotateCertificates.services",),
    ),
    "certificate authorities beside stored services": Case(
        cluster(rotateCertificates={"generation": 2, "services": ["etcd"], "caCertificates": True}),
        ("spec.rkeConfig.rotateCertificates.services",),
        cluster(rotateCertificates={"generation": 1, "services": ["etcd"]}),
    ),
    "stored services may stay": Case(
        cluster(spec=KUBEADM, rotateCertificates={"generation": 2, "services": ["x"]}),
        (),
        cluster(spec=KUBEADM, rotateCertificates={"generation": 1, "services": ["x"]}),
    ),
    "a manifest of objects": Case(cluster(additionalManifest="---\napiVersion: v1\nkind: Namespace\n---\n# end\n")),
    "a manifest that is not YAML": Case(cluster(additionalManifest=f"a: [{CANARY}"), (MANIFEST,)),
    "a manifest with an incomplete object": Case(cluster(additionalManifest="kind: Namespace\n"), (MANIFEST,)),
    "a manifest of plain text": Case(cluster(additionalManifest=CANARY), (MANIFEST,)),
    "a CA bundle with a certificate": Case(with_ca_bundle("-----BEGIN CERTIFICATE-----\n")),
    "a CA bundle without a certificate": Case(with_ca_bundle(CANARY), (BUNDLE,)),
    "a CA bundle that is not base64": Case(
        cluster(registries={"configs": {"r.example": {"caBundle": "-----BEGIN CERTIFICATE-----"}}}), (BUNDLE,)
    ),
}
CASES: dict[str, Case] = {
    **OPERATIONS,
    "strings, booleans and lists are values": Case(
        cluster(machineGlobalConfig={"flannel-backend": "none", "debug": True, "disable": ["a", "b"], "profile": None})
    ),
    "an option that K3s does not know is refused": Case(
        cluster(machineGlobalConfig={"cni": CANARY}), (f"{GLOBAL}.cni",)
    ),
    "an option that the planner sets is refused": Case(
        cluster(machineGlobalConfig={"node-label": ["a=b"]}), (f"{GLOBAL}.node-label",)
    ),
    "an option of a later release is refused": Case(
        cluster(spec={"kubernetesVersion": "v1.26.1+k3s1"}, machineGlobalConfig={"embedded-registry": True}),
        (f"{GLOBAL}.embedded-registry",),
    ),
    "an option that RKE2 does not know is refused": Case(
        cluster(spec=RKE2, machineGlobalConfig={"flannel-backend": "none", "cni": "calico"}),
        (f"{GLOBAL}.flannel-backend",),
    ),
    "an option that kubeadm clusters do not have is refused": Case(
        cluster(spec=KUBEADM, machineSelectorConfig=[{"config": {}}, {"config": {"debug": True}}]),
        (f"{SELECTED}.debug",),
    ),
    "an option of the embedded distribution with an invalid value is refused": Case(
        cluster(spec=EMBEDDED, machineGlobalConfig={"log-level": "loud", "tls-san": ["a.example"]}),
        (f"{GLOBAL}.log-level",),
    ),
    "an unknown option that was stored may stay": Case(
        cluster(machineGlobalConfig={"colour": "blue", "debug": True}),
        (),
        cluster(machineGlobalConfig={"colour": "blue"}),
    ),
    "the embedded distribution has one server": Case(
        cluster(spec=EMBEDDED, machinePools=[server_pool(quantity=3)]), ("spec.rkeConfig.machinePools",)
    ),
    "the embedded distribution has one server in all pools": Case(
        cluster(spec=EMBEDDED, machinePools=[server_pool(), server_pool("more")]), ("spec.rkeConfig.machinePools",)
    ),
    "the embedded distribution has many workers": Case(
        cluster(spec=EMBEDDED, machinePools=[server_pool(), pool(quantity=3)])
    ),
    "a pool does not refer to a built-in kind": Case(
        cluster(machinePools=[pool(machineConfigRef={"apiVersion": "v1", "kind": "ConfigMap", "name": "sheds"})]),
        (f"{POOL}.machineConfigRef.apiVersion",),
    ),
    "a pool refers to a template of another provider": Case(
        cluster(machinePools=[pool(machineConfigRef={"apiVersion": "a.example/v1", "kind": "T", "name": "sheds"})])
    ),
    "the infrastructure is not a built-in kind": Case(
        cluster(infrastructureRef={"apiVersion": "v1", "kind": "Secret", "name": "x"}),
        ("spec.rkeConfig.infrastructureRef.apiVersion",),
    ),
    "other distributions have several servers": Case(cluster(machinePools=[server_pool(quantity=3)])),
    "a version that every machine has cannot be lowered": Case(
        cluster(spec={"kubernetesVersion": "v1.34.0+k3s1"}), ("spec.kubernetesVersion",), up_to_date(cluster())
    ),
    "an upgrade that has not reached every machine can be taken back": Case(
        cluster(spec={"kubernetesVersion": "v1.34.0+k3s1"}), (), up_to_date(cluster(), observed=1)
    ),
    "another build of the same release is no downgrade": Case(
        cluster(), (), up_to_date(cluster(spec={"kubernetesVersion": "v1.34.1+k3s2"}))
    ),
    "numbers are not": Case(cluster(machineGlobalConfig={"https-port": 6443}), (f"{GLOBAL}.https-port",)),
    "fractions are not": Case(cluster(machineGlobalConfig={"ratio": 0.5}), (f"{GLOBAL}.ratio",)),
    "maps are not": Case(cluster(machineGlobalConfig={"kubelet-arg": {"a": "b"}}), (f"{GLOBAL}.kubelet-arg",)),
    "lists of maps are not": Case(cluster(machineGlobalConfig={"tls-san": [{"a": "b"}]}), (f"{GLOBAL}.tls-san",)),
    "nor are they in a machine selector": Case(
        cluster(machineSelectorConfig=[{"config": {}}, {"config": {"v": 2}}]), (f"{SELECTED}.v",)
    ),
    "an invalid value that was stored may stay": Case(
        cluster(machineGlobalConfig={"v": 2, "debug": True}), (), cluster(machineGlobalConfig={"v": 2})
    ),
    "an invalid value cannot become another invalid value": Case(
        cluster(machineGlobalConfig={"v": 3}), (f"{GLOBAL}.v",), cluster(machineGlobalConfig={"v": 2})
    ),
    **{
        f"{key} is a secret": Case(cluster(machineGlobalConfig={key: CANARY}), (f"{GLOBAL}.{key}",))
        for key in ("token", "agent-token", "etcd-s3-secret-key", "vpn-auth", "private-registry")
    },
    "the cloud provider config comes from a Secret": Case(
        cluster(spec=RKE2, machineGlobalConfig={"cloud-provider-config": "secret://fleet-default:cloud"})
    ),
    "the cloud provider config is not in the Cluster": Case(
        cluster(machineGlobalConfig={"cloud-provider-config": f"password={CANARY}"}),
        (f"{GLOBAL}.cloud-provider-config",),
    ),
    "datastore endpoints have no passwords": Case(
        cluster(machineGlobalConfig={"datastore-endpoint": f"mysql://root:{CANARY}@tcp(db:3306)/k3s"}),
        (f"{GLOBAL}.datastore-endpoint",),
    ),
    "charts have no passwords": Case(
        cluster(chartValues={"vsphere-cpi": {"vCenter": {"host": "h", "password": CANARY}}}),
        ("spec.rkeConfig.chartValues.vsphere-cpi.vCenter.password",),
    ),
    "charts name Secrets": Case(cluster(chartValues={"vsphere-cpi": {"vCenter": {"secretName": "creds"}}})),
    "mirrors have no passwords": Case(
        cluster(registries={"mirrors": {"docker.io": {"endpoint": [f"https://me:{CANARY}@mirror"]}}}),
        ("spec.rkeConfig.registries.mirrors[docker.io].endpoint[0]",),
    ),
    "the agents' environment has no secrets": Case(
        cluster(spec={"agentEnvVars": [{"name": "AWS_SECRET_ACCESS_KEY", "value": CANARY}]}), ("spec.agentEnvVars[0]",)
    ),
    "a proxy is no secret": Case(cluster(spec={"agentEnvVars": [{"name": "HTTPS_PROXY", "value": "http://p:3128"}]})),
    "variables have names, of letters, digits and _": Case(
        cluster(spec={"agentEnvVars": [{"value": "x"}, {"name": "a b", "value": "x"}, {"name": "A", "value": "\x00"}]}),
        ("spec.agentEnvVars[0].name", "spec.agentEnvVars[1].name", "spec.agentEnvVars[2].value"),
    ),
    "an invalid variable that was stored may stay": Case(
        cluster(spec={"agentEnvVars": [{"name": "A", "value": "x"}, {"value": "x"}]}),
        (),
        cluster(spec={"agentEnvVars": [{"value": "x"}]}),
    ),
    "selectors are valid": Case(
        cluster(
            machineSelectorConfig=[{"machineLabelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}],
            machineSelectorFiles=[{}, {"machineLabelSelector": {"matchLabels": {"a b": "c"}}}],
        ),
        (
            "spec.rkeConfig.machineSelectorConfig[0].machineLabelSelector.matchExpressions[0].operator",
            "spec.rkeConfig.machineSelectorFiles[1].machineLabelSelector.matchLabels",
        ),
    ),
    "a version of another distribution": Case(cluster(spec={"kubernetesVersion": "v1.34.1-rc1+rke2r2"})),
    "a version names its distribution": Case(
        cluster(spec={"kubernetesVersion": "v1.34.1"}), ("spec.kubernetesVersion",)
    ),
    "a version cannot be removed, which would allow a version skip": Case(
        cluster(spec={"kubernetesVersion": None}), ("spec.kubernetesVersion",), cluster()
    ),
    "a cluster keeps its distribution": Case(
        cluster(spec={"kubernetesVersion": "v1.34.2+rke2r1"}),
        ("spec.kubernetesVersion",),
        cluster(spec={"kubernetesVersion": "v1.34.1+k3s1"}),
    ),
    "another version of the same distribution": Case(
        cluster(spec={"kubernetesVersion": "v1.34.2+k3s1"}), (), cluster(spec={"kubernetesVersion": "v1.34.1+k3s1"})
    ),
    "a version may be set later": Case(
        cluster(spec={"kubernetesVersion": "v1.34.2+k3s1"}), (), cluster(spec={"kubernetesVersion": ""})
    ),
    "names are labels": Case(cluster(name="a" * 64), ("metadata.name",)),
    "names of pools are labels": Case(cluster(machinePools=[pool("Big_Ones")]), (f"{POOL}.name",)),
    "labels of pools are labels": Case(
        cluster(machinePools=[pool(labels={"a b": "c", "d": "e f"})]), (f"{POOL}.labels", f"{POOL}.labels.d")
    ),
    "taints of pools are taints": Case(
        cluster(machinePools=[pool(taints=[{"key": "a b", "effect": "NoSchedule"}])]), (f"{POOL}.taints[0].key",)
    ),
    "timeAdded of taints is a time": Case(
        cluster(machinePools=[pool(taints=[{"key": "a", "effect": "NoSchedule", "timeAdded": []}])]),
        (f"{POOL}.taints[0].timeAdded",),
    ),
    "certificates of registries are text": Case(
        cluster(registries={"configs": {"mirror": {"caBundle": []}}}),
        ("spec.rkeConfig.registries.configs[mirror].caBundle",),
    ),
    "mirrors have valid endpoints": Case(
        cluster(registries={"mirrors": {"docker.io": {"endpoint": ["https://ok", "http://["]}}}),
        ("spec.rkeConfig.registries.mirrors[docker.io].endpoint[1]",),
    ),
    "as many machines as Kubernetes supports": Case(cluster(machinePools=[pool(quantity=4999), pool("b")])),
    "more machines than Kubernetes supports": Case(
        cluster(machinePools=[pool(quantity=5000), pool("b")]), ("spec.rkeConfig.machinePools",)
    ),
    "more machines by autoscaling than Kubernetes supports": Case(
        cluster(machinePools=[pool(quantity=1, autoscalingMinSize=1, autoscalingMaxSize=5001)]),
        ("spec.rkeConfig.machinePools",),
    ),
    "a cluster that is larger already may shrink": Case(
        cluster(machinePools=[pool(quantity=6000)]), old=cluster(machinePools=[pool(quantity=7000)])
    ),
    "sizes of pools are valid numbers": Case(
        cluster(machinePools=[pool(autoscalingMinSize=-1, autoscalingMaxSize=0, maxUnhealthy="9" * 20)]),
        (f"{POOL}.autoscalingMinSize", f"{POOL}.maxUnhealthy"),
    ),
    "unhealthy ranges ascend": Case(cluster(machinePools=[pool(unhealthyRange="[3-1]")]), (f"{POOL}.unhealthyRange",)),
    "unhealthy ranges may have one number, or be empty": Case(
        cluster(machinePools=[pool("a", unhealthyRange="[3-3]"), pool("b", unhealthyRange="", maxUnhealthy="40%")])
    ),
    "rolling updates need surge or unavailability": Case(
        cluster(machinePools=[pool(rollingUpdate={"maxSurge": 0, "maxUnavailable": 0})]), (f"{POOL}.rollingUpdate",)
    ),
    **{
        f"{version} has etcd and control plane together: {' '.join(roles) or 'neither'}": Case(
            cluster(spec={"kubernetesVersion": version}, machinePools=[pool(**dict.fromkeys(roles, True))]),
            (POOL,) if len(roles) == 1 and "k3s" not in version else (),
        )
        for version in ("v1.36.3+kubeadm1", "v1.36.3+herder1", "v1.36.3+k3s1")
        for roles in ((), ("etcdRole",), ("controlPlaneRole",), ("etcdRole", "controlPlaneRole"))
    },
    "roles and operating system of a pool are immutable": Case(
        cluster(spec=RKE2, machinePools=[pool(workerRole=False, etcdRole=True, machineOS="windows", quantity=3)]),
        (f"{POOL}.etcdRole", f"{POOL}.workerRole", f"{POOL}.machineOS"),
        cluster(spec=RKE2, machinePools=[pool(quantity=1)]),
    ),
    "defaults may be set explicitly": Case(
        cluster(machinePools=[pool(etcdRole=False, machineOS="linux")]), (), cluster(machinePools=[pool()])
    ),
    "a pool without roles may get one": Case(
        cluster(machinePools=[pool()]), (), cluster(machinePools=[pool(workerRole=False)])
    ),
    "another pool can have other roles": Case(
        cluster(machinePools=[pool("servers", etcdRole=True, controlPlaneRole=True)]),
        (),
        cluster(machinePools=[pool()]),
    ),
    "directories are absolute": Case(
        cluster(dataDirectories={"systemAgent": "here"}), ("spec.rkeConfig.dataDirectories.systemAgent",)
    ),
    "directories have no shell characters": Case(
        cluster(dataDirectories={"systemAgent": "/a b", "provisioning": "/$c", "k8sDistro": "/d;e"}),
        tuple(f"spec.rkeConfig.dataDirectories.{name}" for name in ("systemAgent", "provisioning", "k8sDistro")),
    ),
    "directories are immutable": Case(
        cluster(dataDirectories={"k8sDistro": "/b"}),
        ("spec.rkeConfig.dataDirectories.k8sDistro",),
        cluster(dataDirectories={"k8sDistro": "/a"}),
    ),
    "an empty directory equals none": Case(cluster(dataDirectories={"k8sDistro": ""}), (), cluster()),
    "infrastructure is immutable": Case(
        cluster(), ("spec.rkeConfig.infrastructureRef",), cluster(infrastructureRef={"kind": "K", "name": "n"})
    ),
    "an imported cluster cannot become a provisioned one": Case(cluster(), ("spec.rkeConfig",), IMPORTED),
    "a provisioned cluster cannot become an imported one": Case(IMPORTED, ("spec.rkeConfig",), cluster()),
}


@pytest.mark.parametrize("case", CASES)
def test_admission_cases(case: str) -> None:
    new, fields, old = CASES[case]
    before = copy.deepcopy((new, old))
    problems = ADMISSION.validate(new, old)
    assert tuple(problem.field for problem in problems) == fields
    assert (new, old) == before
    assert not any(CANARY in str(problem) for problem in problems), "errors are logged"


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "password": True,
        "adminPassword": True,
        "clientSecret": True,
        "secretKey": True,
        "AWS_SECRET_ACCESS_KEY": True,
        "auth-token": True,
        "secretName": False,
        "secret": True,
        "existingSecret": False,
        "tokenReview": False,
        "username": False,
        "HTTPS_PROXY": False,
        "keyboard": False,
    }.items(),
)
def test_secrets_are_recognized_by_their_names(name: str, expected: bool) -> None:
    assert is_secret_name(name) is expected


# --- defaults -------------------------------------------------------------------------------------------------------


def dynamic_schema_specs(new: Object, old: Object | None) -> list[Any]:
    assert ADMISSION.default is not None
    pools = ADMISSION.default(new, old)["spec"]["rkeConfig"].get("machinePools") or []
    return [each.get("dynamicSchemaSpec") for each in pools]


def test_dynamic_schemas_of_pools_survive_updates_that_omit_them() -> None:
    old = cluster(machinePools=[pool("a", dynamicSchemaSpec="A"), pool("b", dynamicSchemaSpec="B")])
    assert dynamic_schema_specs(cluster(machinePools=[pool("b"), pool("c"), pool("a")]), old) == ["B", None, "A"]
    assert dynamic_schema_specs(cluster(machinePools=[pool("a", dynamicSchemaSpec="new")]), old) == ["new"]
    assert dynamic_schema_specs(cluster(machinePools=[pool("a")]), None) == [None]
    dropped = cluster(machinePools=[pool("a")])
    dropped["metadata"]["annotations"] = {"provisioning.cattle.io/allow-dynamic-schema-drop": "true"}
    assert dynamic_schema_specs(dropped, old) == [None]


@pytest.mark.parametrize("spec", [None, [], {"rkeConfig": 5}, {"rkeConfig": {"machinePools": [1, None, {}]}}])
def test_defaulting_accepts_any_spec(spec: Any) -> None:
    assert ADMISSION.default is not None
    broken = {**cluster(), "spec": spec}
    assert ADMISSION.default(broken, cluster(machinePools=[pool("a", dynamicSchemaSpec="A")])) == broken


@pytest.mark.parametrize("part", ["machineSelectorConfig", "machineSelectorFiles", "agentEnvVars"])
def test_entries_are_compared_in_linear_time(part: str) -> None:
    """Admission runs on the event loop, for each write of a controller."""
    numbers = range(6_000)

    def large_cluster(tag: str) -> Object:
        if part == "agentEnvVars":
            return cluster(spec={part: [{"name": f"V{number}", "value": tag} for number in numbers]})
        entries: Any = [{"machineLabelSelector": {"matchLabels": {f"{tag}{number}": "x"}}} for number in numbers]
        return cluster(**{part: entries})

    old, new = large_cluster("a"), large_cluster("b")
    started = time.thread_time()
    ADMISSION.validate(new, old)
    assert time.thread_time() - started < 0.3


@pytest.mark.parametrize("imported", [False, True])
def test_a_cluster_has_a_limited_number_of_values(imported: bool) -> None:
    """Each reconcile reads all of them."""
    variables = [{"name": f"V{number}", "value": "x"} for number in range(10_000)]
    large = cluster(spec={"agentEnvVars": variables})
    if imported:
        del large["spec"]["rkeConfig"]
    (problem,) = ADMISSION.validate(large, None)
    assert (problem.field, "at most 20000" in problem.body) == ("spec", True)
    assert not ADMISSION.validate(large, large), "it may have been stored before the limit existed"
    large["spec"]["agentEnvVars"] = variables[:6_000]
    assert not ADMISSION.validate(large, None)


@pytest.mark.parametrize("text", ["a" * 12_000, "://" * 4_000, "a://b:" + "c:" * 6_000, "a://" * 3_000])
@pytest.mark.parametrize("field", ["config", "mirror"])
def test_long_text_is_searched_for_passwords_in_linear_time(text: str, field: str) -> None:
    """A Cluster can hold a megabyte; a quadratic search of it takes hours on the event loop."""
    config = {"registries": {"mirrors": {"m": {"endpoint": [text]}}}} if field == "mirror" else {"x": text}
    large_cluster = cluster(**config) if field == "mirror" else cluster(machineGlobalConfig=config)
    started = time.thread_time()
    ADMISSION.validate(large_cluster, None)
    assert time.thread_time() - started < 0.3
