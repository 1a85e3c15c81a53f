"""What may be asked of a provisioned cluster: the rules alone."""

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

ADMISSION = RULES[PROVISIONING_CLUSTER]
CANARY = "sekrit-canary-7431"


def cluster(*, name: str = "meadow", spec: Object | None = None, **rke_config: Any) -> Object:
    return {
        "apiVersion": PROVISIONING_CLUSTER.api_version,
        "kind": PROVISIONING_CLUSTER.kind,
        "metadata": {"name": name, "namespace": "fleet-default"},
        "spec": {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": rke_config, **(spec or {})},
    }


def pool(name: str = "workers", **fields: Any) -> Object:
    return {"name": name, "machineConfigRef": {"kind": "ShedConfig", "name": "sheds"}, "workerRole": True, **fields}


IMPORTED = cluster() | {"spec": {}}


class Case(NamedTuple):
    new: Object
    fields: tuple[str, ...] = ()  # that are refused
    old: Object | None = None


STRATEGY, ETCD, MANIFEST = (f"spec.rkeConfig.{part}" for part in ("upgradeStrategy", "etcd", "additionalManifest"))


def draining(**options: Any) -> Object:
    return cluster(upgradeStrategy={"workerDrainOptions": options})


def bundle(content: str) -> Object:
    encoded = base64.b64encode(content.encode()).decode()
    return cluster(registries={"configs": {"r.example": {"caBundle": encoded}}})


GLOBAL, SELECTED = "spec.rkeConfig.machineGlobalConfig", "spec.rkeConfig.machineSelectorConfig[1].config"
POOL = "spec.rkeConfig.machinePools[0]"
BUNDLE = "spec.rkeConfig.registries.configs[r.example].caBundle"
OPERATIONS: dict[str, Case] = {
    "pods may be given as long as they ask for": Case(draining(gracePeriod=-1, timeout=0)),
    "and no less": Case(draining(gracePeriod=-2), (f"{STRATEGY}.workerDrainOptions.gracePeriod",)),
    "drains end in the future": Case(draining(timeout=-1), (f"{STRATEGY}.workerDrainOptions.timeout",)),
    "a hook waits for an annotation": Case(
        draining(preDrainHooks=[{"annotation": "a"}, {}]),
        (f"{STRATEGY}.workerDrainOptions.preDrainHooks[1].annotation",),
    ),
    "what a drain was before may stay": Case(draining(timeout=-1), (), draining(timeout=-1)),
    "snapshots have a schedule": Case(cluster(etcd={"snapshotScheduleCron": "0 */6 * * *"})),
    "and no other text": Case(cluster(etcd={"snapshotScheduleCron": "sometimes"}), (f"{ETCD}.snapshotScheduleCron",)),
    "objects are applied": Case(cluster(additionalManifest="---\napiVersion: v1\nkind: Namespace\n---\n# end\n")),
    "and nothing that is no YAML": Case(cluster(additionalManifest=f"a: [{CANARY}"), (MANIFEST,)),
    "nor what is no object": Case(cluster(additionalManifest="kind: Namespace\n"), (MANIFEST,)),
    "nor a word": Case(cluster(additionalManifest=CANARY), (MANIFEST,)),
    "a registry's authority is a certificate": Case(bundle("-----BEGIN CERTIFICATE-----\n")),
    "and nothing else": Case(bundle(CANARY), (BUNDLE,)),
    "nor what is not encoded": Case(
        cluster(registries={"configs": {"r.example": {"caBundle": "-----BEGIN CERTIFICATE-----"}}}), (BUNDLE,)
    ),
}
CASES: dict[str, Case] = {
    **OPERATIONS,
    "text, truth and lists are values": Case(
        cluster(machineGlobalConfig={"cni": "calico", "debug": True, "disable": ["a", "b"], "profile": None})
    ),
    "numbers are not": Case(cluster(machineGlobalConfig={"https-port": 6443}), (f"{GLOBAL}.https-port",)),
    "fractions are not": Case(cluster(machineGlobalConfig={"ratio": 0.5}), (f"{GLOBAL}.ratio",)),
    "maps are not": Case(cluster(machineGlobalConfig={"kubelet-arg": {"a": "b"}}), (f"{GLOBAL}.kubelet-arg",)),
    "lists of maps are not": Case(cluster(machineGlobalConfig={"tls-san": [{"a": "b"}]}), (f"{GLOBAL}.tls-san",)),
    "nor for some machines": Case(
        cluster(machineSelectorConfig=[{"config": {}}, {"config": {"v": 2}}]), (f"{SELECTED}.v",)
    ),
    "what was there before may stay": Case(
        cluster(machineGlobalConfig={"v": 2, "debug": True}), (), cluster(machineGlobalConfig={"v": 2})
    ),
    "what was there before may not become something else that is wrong": Case(
        cluster(machineGlobalConfig={"v": 3}), (f"{GLOBAL}.v",), cluster(machineGlobalConfig={"v": 2})
    ),
    **{
        f"{key} is a secret": Case(cluster(machineGlobalConfig={key: CANARY}), (f"{GLOBAL}.{key}",))
        for key in ("token", "agent-token", "etcd-s3-secret-key", "vpn-auth", "private-registry")
    },
    "the cloud's configuration comes from a Secret": Case(
        cluster(machineGlobalConfig={"cloud-provider-config": "secret://fleet-default:cloud"})
    ),
    "and not from the Cluster": Case(
        cluster(machineGlobalConfig={"cloud-provider-config": f"password={CANARY}"}),
        (f"{GLOBAL}.cloud-provider-config",),
    ),
    "addresses have no passwords": Case(
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
    "a variable that was there may stay": Case(
        cluster(spec={"agentEnvVars": [{"name": "A", "value": "x"}, {"value": "x"}]}),
        (),
        cluster(spec={"agentEnvVars": [{"value": "x"}]}),
    ),
    "selectors select": Case(
        cluster(
            machineSelectorConfig=[{"machineLabelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}],
            machineSelectorFiles=[{}, {"machineLabelSelector": {"matchLabels": {"a b": "c"}}}],
        ),
        (
            "spec.rkeConfig.machineSelectorConfig[0].machineLabelSelector.matchExpressions[0].operator",
            "spec.rkeConfig.machineSelectorFiles[1].machineLabelSelector.matchLabels",
        ),
    ),
    "every distribution has its versions": Case(cluster(spec={"kubernetesVersion": "v1.34.1-rc1+rke2r2"})),
    "a version names its distribution": Case(
        cluster(spec={"kubernetesVersion": "v1.34.1"}), ("spec.kubernetesVersion",)
    ),
    "a cluster keeps its version, so that no other skips what it had": Case(
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
    "a version may be told late": Case(
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
    "times of taints are times": Case(
        cluster(machinePools=[pool(taints=[{"key": "a", "effect": "NoSchedule", "timeAdded": []}])]),
        (f"{POOL}.taints[0].timeAdded",),
    ),
    "certificates of registries are text": Case(
        cluster(registries={"configs": {"mirror": {"caBundle": []}}}),
        ("spec.rkeConfig.registries.configs[mirror].caBundle",),
    ),
    "mirrors have addresses": Case(
        cluster(registries={"mirrors": {"docker.io": {"endpoint": ["https://ok", "http://["]}}}),
        ("spec.rkeConfig.registries.mirrors[docker.io].endpoint[1]",),
    ),
    "as many machines as Kubernetes supports": Case(cluster(machinePools=[pool(quantity=4999), pool("b")])),
    "and no more": Case(cluster(machinePools=[pool(quantity=5000), pool("b")]), ("spec.rkeConfig.machinePools",)),
    "nor by scaling": Case(
        cluster(machinePools=[pool(quantity=1, autoscalingMinSize=1, autoscalingMaxSize=5001)]),
        ("spec.rkeConfig.machinePools",),
    ),
    "a cluster that is larger already may shrink": Case(
        cluster(machinePools=[pool(quantity=6000)]), old=cluster(machinePools=[pool(quantity=7000)])
    ),
    "sizes of pools are numbers of machines": Case(
        cluster(machinePools=[pool(autoscalingMinSize=-1, autoscalingMaxSize=0, maxUnhealthy="9" * 20)]),
        (f"{POOL}.autoscalingMinSize", f"{POOL}.maxUnhealthy"),
    ),
    "ranges go up": Case(cluster(machinePools=[pool(unhealthyRange="[3-1]")]), (f"{POOL}.unhealthyRange",)),
    "ranges may be of one number, or none": Case(
        cluster(machinePools=[pool("a", unhealthyRange="[3-3]"), pool("b", unhealthyRange="", maxUnhealthy="40%")])
    ),
    "a pool can be rolled": Case(
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
    "a pool's machines stay what they are": Case(
        cluster(machinePools=[pool(workerRole=False, etcdRole=True, machineOS="windows", quantity=3)]),
        (f"{POOL}.etcdRole", f"{POOL}.workerRole", f"{POOL}.machineOS"),
        cluster(machinePools=[pool(quantity=1)]),
    ),
    "what goes without saying may be said": Case(
        cluster(machinePools=[pool(etcdRole=False, machineOS="linux")]), (), cluster(machinePools=[pool()])
    ),
    "a pool that was given no role can be given one": Case(
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
    "directories have names that no shell minds": Case(
        cluster(dataDirectories={"systemAgent": "/a b", "provisioning": "/$c", "k8sDistro": "/d;e"}),
        tuple(f"spec.rkeConfig.dataDirectories.{name}" for name in ("systemAgent", "provisioning", "k8sDistro")),
    ),
    "directories stay": Case(
        cluster(dataDirectories={"k8sDistro": "/b"}),
        ("spec.rkeConfig.dataDirectories.k8sDistro",),
        cluster(dataDirectories={"k8sDistro": "/a"}),
    ),
    "no directories are no directories": Case(cluster(dataDirectories={"k8sDistro": ""}), (), cluster()),
    "infrastructure stays": Case(
        cluster(), ("spec.rkeConfig.infrastructureRef",), cluster(infrastructureRef={"kind": "K", "name": "n"})
    ),
    "an imported cluster is not built": Case(cluster(), ("spec.rkeConfig",), IMPORTED),
    "a built cluster is not imported": Case(IMPORTED, ("spec.rkeConfig",), cluster()),
}


@pytest.mark.parametrize("case", CASES)
def test_the_table(case: str) -> None:
    new, fields, old = CASES[case]
    before = copy.deepcopy((new, old))
    problems = ADMISSION.validate(new, old)
    assert tuple(problem.field for problem in problems) == fields
    assert (new, old) == before
    assert not any(CANARY in str(problem) for problem in problems), "an answer is logged"


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
def test_secrets_are_known_by_their_names(name: str, expected: bool) -> None:
    assert is_secret_name(name) is expected


# --- what is filled in ----------------------------------------------------------------------------------------------


def filled(new: Object, old: Object | None) -> list[Any]:
    assert ADMISSION.default is not None
    pools = ADMISSION.default(new, old)["spec"]["rkeConfig"].get("machinePools") or []
    return [each.get("dynamicSchemaSpec") for each in pools]


def test_the_drivers_fields_are_kept_by_writers_that_do_not_know_of_them() -> None:
    old = cluster(machinePools=[pool("a", dynamicSchemaSpec="A"), pool("b", dynamicSchemaSpec="B")])
    assert filled(cluster(machinePools=[pool("b"), pool("c"), pool("a")]), old) == ["B", None, "A"]
    assert filled(cluster(machinePools=[pool("a", dynamicSchemaSpec="new")]), old) == ["new"]
    assert filled(cluster(machinePools=[pool("a")]), None) == [None]
    dropped = cluster(machinePools=[pool("a")])
    dropped["metadata"]["annotations"] = {"provisioning.cattle.io/allow-dynamic-schema-drop": "true"}
    assert filled(dropped, old) == [None]


@pytest.mark.parametrize("spec", [None, [], {"rkeConfig": 5}, {"rkeConfig": {"machinePools": [1, None, {}]}}])
def test_filling_in_bears_anything(spec: Any) -> None:
    assert ADMISSION.default is not None
    broken = {**cluster(), "spec": spec}
    assert ADMISSION.default(broken, cluster(machinePools=[pool("a", dynamicSchemaSpec="A")])) == broken


@pytest.mark.parametrize("part", ["machineSelectorConfig", "machineSelectorFiles", "agentEnvVars"])
def test_entries_are_not_compared_each_with_each(part: str) -> None:
    """Admission runs on the event loop, again with each write of a controller."""
    numbers = range(6_000)

    def written(tag: str) -> Object:
        if part == "agentEnvVars":
            return cluster(spec={part: [{"name": f"V{number}", "value": tag} for number in numbers]})
        entries: Any = [{"machineLabelSelector": {"matchLabels": {f"{tag}{number}": "x"}}} for number in numbers]
        return cluster(**{part: entries})

    old, new = written("a"), written("b")
    started = time.thread_time()
    ADMISSION.validate(new, old)
    assert time.thread_time() - started < 0.3


@pytest.mark.parametrize("imported", [False, True])
def test_a_cluster_has_a_limited_number_of_values(imported: bool) -> None:
    """Each pass of a controller looks at all of them."""
    variables = [{"name": f"V{number}", "value": "x"} for number in range(10_000)]
    large = cluster(spec={"agentEnvVars": variables})
    if imported:
        del large["spec"]["rkeConfig"]
    (problem,) = ADMISSION.validate(large, None)
    assert (problem.field, "at most 20000" in problem.body) == ("spec", True)
    assert not ADMISSION.validate(large, large), "it was stored before there was a limit"
    large["spec"]["agentEnvVars"] = variables[:6_000]
    assert not ADMISSION.validate(large, None)


@pytest.mark.parametrize("text", ["a" * 12_000, "://" * 4_000, "a://b:" + "c:" * 6_000, "a://" * 3_000])
@pytest.mark.parametrize("place", ["config", "mirror"])
def test_long_text_is_searched_for_passwords_in_linear_time(text: str, place: str) -> None:
    """Of the megabyte that a Cluster can hold, a quadratic search takes hours, on the event loop."""
    config = {"registries": {"mirrors": {"m": {"endpoint": [text]}}}} if place == "mirror" else {"x": text}
    written = cluster(**config) if place == "mirror" else cluster(machineGlobalConfig=config)
    started = time.thread_time()
    ADMISSION.validate(written, None)
    assert time.thread_time() - started < 0.3
