"""Clusters that are almost valid. Each is rejected with the name of the field, or becomes objects and plans, or an
error in a condition. No reconciler raises.

python -m tests.unit.controllers.provisioning.invalid_clusters --clusters 20000 [--seed 1] [--first 0]
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import copy
import logging
import random
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from herder.api.capi.conditions import find
from herder.api.capi.kinds import SECRET
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.manifest import Agent
from herder.api.rke import names
from herder.api.rke.fields.table import refused_values
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.node.install import BadVariable, agent_variables
from herder.controllers.planner import controller as planner
from herder.controllers.planner.distributions.interface import (
    Authority,
    ClusterInputs,
    MachineInputs,
    Reference,
    Referenced,
    Roles,
)
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.engine.meta.errors import BadRequest, Invalid
from herder.engine.meta.kinds import Object
from herder.sim import loop
from tests.fuzz.inputs.mutation import NUMBERS, STRINGS, mutated_repeatedly
from tests.support.builders import new_manifest
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import TOKENS, machine_with_plan, reconcile_planner
from tests.unit.controllers.provisioning.objects import KINDS, WORKSPACE, cluster, config, pool
from tests.unit.controllers.provisioning.simulated_manager import SimulatedManager

RAISED = "cannot be validated"  # part of the message of an admission rule that raised
BATCH = 100  # clusters in one simulation, in a long run
SETTLE_SECONDS = 60.0  # virtual seconds until all clusters have been reconciled
VERSIONS: dict[str, Object] = {
    "v1.34.1+k3s1": {"tls-san": ["a.example"], "kubelet-arg": ["a=b"], "flannel-backend": "none", "debug": True},
    "v1.34.1+rke2r1": {"tls-san": ["a.example"], "cni": "calico", "cloud-provider-name": "aws", "profile": "cis"},
    "v1.36.3+kubeadm1": {"tls-san": ["a.example"], "kubelet-arg": ["v=2"], "node-taint": ["a=b:NoExecute"]},
    "v1.36.3+herder1": {"tls-san": ["a.example"], "node-label": ["a=b"], "node-taint": "a:NoSchedule"},
}
"""By distribution: valid arguments for its machines."""

# --- specs ----------------------------------------------------------------------------------------------------------

CERTIFICATE = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()
_SELECTOR = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}]}
_FILES = {"name": "s", "defaultPermissions": "0644", "items": [{"key": "k", "path": "/f", "dynamic": True, "hash": ""}]}
_DRAIN = {
    "enabled": True,
    "force": False,
    "gracePeriod": 5,
    "timeout": 10,
    "skipWaitForDeleteTimeoutSeconds": 1,
    "preDrainHooks": [{"annotation": "example.com/hook"}],
}
_MIRROR_HOST = "mirror.example:5000"
_MIRROR = f"https://{_MIRROR_HOST}/v2"
_TERM = {"key": "a", "operator": "Exists", "values": []}
_CUSTOMIZATION = {
    "appendTolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 1}],
    "overrideAffinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [_TERM]}]}
        }
    },
    "overrideResourceRequirements": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": 1}},
    "schedulingCustomization": {
        "priorityClass": {"value": 1000, "preemptionPolicy": "Never"},
        "podDisruptionBudget": {"minAvailable": "1"},
    },
}
_POOL = pool(
    "servers",
    "etcd",
    "controlPlane",
    "worker",
    quantity=1,
    displayName="Servers",
    paused=False,
    drainBeforeDelete=True,
    drainBeforeDeleteTimeout="10m",
    labels={"wool": "white", "example.com/a": "b"},
    taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}],
    cloudCredentialSecretName="fleet-default:cc",
    rollingUpdate={"maxUnavailable": 1, "maxSurge": "25%"},
    machineDeploymentLabels={"c": "d"},
    machineDeploymentAnnotations={"e": "f"},
    nodeStartupTimeout="10m",
    unhealthyNodeTimeout="5m",
    maxUnhealthy="40%",
    unhealthyRange="[1-3]",
    machineOS="linux",
    hostnameLengthLimit=20,
    userdata={"inlineUserdata": "#cloud-config"},
)
_SCALED = pool("scaled", autoscalingMinSize=1, autoscalingMaxSize=3)
_RKE_CONFIG: Object = {
    "machinePools": [_POOL, _SCALED],
    "machinePoolDefaults": {"hostnameLengthLimit": 30},
    "upgradeStrategy": {
        "controlPlaneConcurrency": "1",
        "controlPlaneDrainOptions": _DRAIN,
        "workerConcurrency": "10%",
        "workerDrainOptions": _DRAIN,
    },
    "chartValues": {"rke2-calico": {"global": {"cattle": {"a": 1}}}},
    "machineSelectorFiles": [{"machineLabelSelector": _SELECTOR, "fileSources": [{"secret": _FILES}]}],
    "additionalManifest": "apiVersion: v1\nkind: List\n",
    "registries": {
        "mirrors": {"docker.io": {"endpoint": [_MIRROR], "rewrite": {"^a": "b"}}},
        "configs": {_MIRROR_HOST: {"authConfigSecretName": "s", "tlsSecretName": "t", "caBundle": CERTIFICATE}},
    },
    "etcd": {
        "disableSnapshots": False,
        "snapshotScheduleCron": "0 */5 * * *",
        "snapshotRetention": 5,
        "s3": {"endpoint": "s3.example", "bucket": "b", "cloudCredentialName": "fleet-default:cc", "retention": 3},
    },
    "networking": {"stackPreference": "dual"},
    "dataDirectories": {"systemAgent": "/a", "provisioning": "/b", "k8sDistro": "/c"},
    "provisionGeneration": 1,
    "etcdSnapshotCreate": {"generation": 1},
    "etcdSnapshotRestore": {"name": "n", "generation": 1, "restoreRKEConfig": "all"},
    "rotateCertificates": {"generation": 1, "services": ["api-server"]},
    "rotateEncryptionKeys": {"generation": 1},
}
_SPEC: Object = {
    "cloudCredentialSecretName": "fleet-default:cc",
    "localClusterAuthEndpoint": {"enabled": True, "fqdn": "api.example", "caCerts": "PEM"},
    "agentEnvVars": [{"name": "HTTPS_PROXY", "value": "http://p:3128"}],
    "clusterAgentDeploymentCustomization": _CUSTOMIZATION,
    "fleetAgentDeploymentCustomization": _CUSTOMIZATION,
    "webhookDeploymentCustomization": {"replicaCount": 2, "podDisruptionBudget": {"maxUnavailable": "50%"}},
    "defaultClusterRoleForProjectMembers": "r",
    "defaultPodSecurityAdmissionConfigurationTemplateName": "p",
    "enableNetworkPolicy": True,
}
DIGITS = "9" * 5000
HOSTILE_TEXTS = (
    *(
        "{{ x }}\n",
        "[a]: b\n",
        "? {a: b}\n: c\n",
        "a: &a [*a]\n",
        "!!python/object:os.system x",
        "--- |\n",
        "\t",
        "{% x %}",
    ),
    *(DIGITS, f"{DIGITS}%", f"{DIGITS}h", f"[1-{DIGITS}]", f"[{DIGITS}-1]", f"0/{DIGITS} * * * *", f"{DIGITS} * * * *"),
    *(
        f"v1.{DIGITS}.0+k3s1",
        f"10.0.0.0/{DIGITS}",
        f"h:{DIGITS}",
        "[" * 100_000,
        "{" * 100_000,
        "- " * 50_000,
        "²",
        "१",
    ),
)
"""Text that may break a parser or a conversion to a number."""
NEAR_MISSES: tuple[Any, ...] = (
    *HOSTILE_TEXTS,
    *("http://[", "https://u@h:x/", "h:99999", "//", ":::", "10.0.0.0/8", "secret://", "secret://a:b", "a:b:c", "a,b"),
    *("[3-1]", "[1-99999999999999999999]", "99999999999999999999", "0%", "101%", "1.5%", "1h1", "-1s", "9" * 20 + "h"),
    *("In", "Gt", "'", "a=b", "=", "a=", "=b", "a:NoExecute", "/..", "../x", "/a b", "/a;b", "C:\\x", "9999", "a\tb"),
    *("v1.34.1+k3s", "v1.34.1+k3s1-x", "v0.0.0+rke2r0", "\ud7ff", None, True, [], {}, *STRINGS, *NUMBERS),
)


def valid_spec(rng: random.Random, number: int) -> Object:
    """A random selection of all fields. Each cluster has its own machine config."""
    reference = {"kind": KINDS.config.kind, "name": _name(number)}
    version = rng.choice([*VERSIONS])
    arguments = VERSIONS[version]
    rke_config = {
        **copy.deepcopy(_RKE_CONFIG),
        "machinePools": [each | {"machineConfigRef": reference} for each in _RKE_CONFIG["machinePools"]],
        "machineGlobalConfig": arguments,
        "machineSelectorConfig": [{"machineLabelSelector": _SELECTOR, "config": arguments}, {"config": arguments}],
    }
    keys = rng.sample([*rke_config], rng.randrange(1, len(rke_config)))
    spec_keys = rng.sample([*_SPEC], rng.randrange(len(_SPEC)))
    selected_config = {part: rke_config[part] for part in keys}
    spec = {part: copy.deepcopy(_SPEC[part]) for part in spec_keys}
    return _without_refused({"kubernetesVersion": version, "rkeConfig": selected_config, **spec})


def _without_refused(spec: Object) -> Object:
    """Remove the values that the field table refuses on the distribution."""
    for each in [*refused_values({"spec": spec})]:
        _, *place, last = re.findall(r"(?<=\[)[^]]+(?=\])|[^.[\]]+(?![^[]*\])", each.field)
        found: Any = spec
        for key in place:
            found = found[int(key) if isinstance(found, list) else key]
        del found[last]
    return spec


def full_spec(version: str) -> Object:
    """A spec with every field."""
    arguments = VERSIONS[version]
    selectors = [{"machineLabelSelector": _SELECTOR, "config": arguments}]
    config = {**_RKE_CONFIG, "machineGlobalConfig": arguments, "machineSelectorConfig": selectors}
    return {"kubernetesVersion": version, "rkeConfig": config, **_SPEC}


def with_hostile_texts(spec: Object) -> Iterator[tuple[str, Object]]:
    """The spec with each of its texts replaced by each of `HOSTILE_TEXTS`, with the place and the number of the
    text."""
    for place in _places(spec):
        found: Any = spec
        for key in place:
            found = found[key]
        for number, text in enumerate(HOSTILE_TEXTS if isinstance(found, str) else ()):
            yield f"{'.'.join(map(str, place))} {number}", _with(spec, place, text)


def invalid_spec(seed: int, number: int) -> Object:
    """The same spec for the same two numbers. Mostly one field is wrong or nearly right; sometimes any number of
    them."""
    rng = random.Random(f"{seed}/{number}")
    spec = valid_spec(rng, number)
    mutate = _with_near_miss if rng.random() < 0.5 else mutated_repeatedly
    fields = spec["rkeConfig"] if rng.random() < 0.7 else spec
    key = rng.choice([*fields])
    if rng.random() < 0.9:
        fields[key] = mutate(fields[key], rng)
        return spec
    mutated = mutate(spec, rng)
    return mutated if isinstance(mutated, dict) else {"rkeConfig": mutated}


def _with_near_miss(value: Any, rng: random.Random) -> Any:
    """One of all values is replaced by one that is valid elsewhere, or almost valid."""
    return _with(value, rng.choice([*_places(value)]), rng.choice(NEAR_MISSES))


def _places(value: Any) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inside = [(key, *rest) for key, entry in entries for rest in _places(entry)]
    yield from inside or [()]


def _with(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    if not place:
        return other
    copied = copy.copy(value)
    copied[place[0]] = _with(value[place[0]], place[1:], other)
    return copied


# --- outcomes -------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """How many clusters had which outcome, and the first failure of each cluster."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    on_failure: Callable[[str], None] = lambda _line: None  # called for each failure

    def failed(self, number: int, why: str) -> None:
        """Record a failure, unless the cluster has one already that may be its cause."""
        if number not in self.failures:
            self.failures[number] = why
            self.on_failure(f"  {number}: {why}")

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        return f"{self.outcomes.total()} clusters: {counts}; {len(self.failures)} failures"


def run(specs: Mapping[int, Object], report: Report) -> Report:
    """Run all clusters, by their numbers, in one simulation."""
    loop.run(_simulate(specs, report))
    return report


async def _simulate(specs: Mapping[int, Object], report: Report) -> None:
    """Without the core controllers of Cluster API: the number of machines does not matter here."""
    manager, warnings = SimulatedManager(core=(), controllers=(planner.CONTROLLER,)), _Warnings()
    logging.getLogger("herder").addHandler(warnings)
    try:
        async with manager.world:
            await manager.prepare()
            await manager.create(SECRET, new_manifest(SECRET, "cc", WORKSPACE))
            await manager.create(PROVISIONING_CLUSTER, cluster(pool("workers")))
            for number in specs:
                await manager.create(KINDS.config, config(_name(number), image="debian"))
            accepted = [number for number, spec in specs.items() if await _is_accepted(manager, number, spec, report)]
            await asyncio.sleep(SETTLE_SECONDS)
            for number, warning in warnings:
                report.failed(number, warning)
            for number in accepted:
                await _check_outcome(manager, number, report)
    finally:
        logging.getLogger("herder").removeHandler(warnings)


async def _is_accepted(manager: SimulatedManager, number: int, spec: Object, report: Report) -> bool:
    """Whether the API server accepts the cluster. A rejection must name the field, and an edit must not fail
    otherwise."""
    existing = await manager.cluster()
    try:
        client = manager.world.client
        await client.update(PROVISIONING_CLUSTER.resource, {**existing, "spec": spec}, dry_run=True)
    except (Invalid, BadRequest) as refused:
        if RAISED in refused.message:
            report.failed(number, f"update: a rule raises: {refused.message}")
    except Exception as error:
        report.failed(number, f"update: {type(error).__name__}: {error}")
    try:
        obj = new_manifest(PROVISIONING_CLUSTER, _name(number), WORKSPACE, spec=spec)
        await manager.create(PROVISIONING_CLUSTER, obj)
    except Invalid as refused:
        report.outcomes["refused"] += 1
        if not all(cause.get("field") for cause in (refused.details or {}).get("causes") or [{}]):
            report.failed(number, f"refused without a field: {refused.message}")
        if RAISED in refused.message:
            report.failed(number, f"a rule raises: {refused.message}")
        return False
    except BadRequest:
        report.outcomes["refused"] += 1
        return False
    except Exception as error:
        report.failed(number, f"create: {type(error).__name__}: {error}")
        return False
    return True


async def _check_outcome(manager: SimulatedManager, number: int, report: Report) -> None:
    stored = await manager.get(PROVISIONING_CLUSTER, _name(number))
    control_plane = await manager.get(CONTROL_PLANE, _name(number))
    assert stored is not None
    problem = (find(stored, "Stalled") or {}).get("message", "")
    if stored["spec"].get("rkeConfig") is None:
        report.outcomes["imported"] += 1
    elif problem:
        report.outcomes["reported"] += 1
        if not problem.startswith(("spec.", "spec:")):
            report.failed(number, f"reported without a field: {problem}")
    elif control_plane is None:
        report.failed(number, f"nothing was created, and no error reported: {stored.get('status')}")
    else:
        _check_plans(number, control_plane, report)


def _name(number: int) -> str:
    return f"odd-{number}"


class _Warnings(logging.Handler):
    """Collects warnings of the manager: failed reconciles, and events that could not be handled."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Each warning with the number of its cluster, or -1 if it has none."""
        for record in self._records:
            fields: dict[str, Any] = getattr(record, "fields", {})
            name = str(fields.get("key") or fields.get("name") or "").rpartition("/")[2]
            number = name.removeprefix("odd-").partition("-")[0]
            raised = "".join(traceback.format_exception(record.exc_info[1])[-3:]) if record.exc_info else ""
            yield int(number) if number.isdecimal() else -1, f"{record.getMessage()} {fields} {raised}"


# --- plans ----------------------------------------------------------------------------------------------------------

_KEYS = ("username", "password", "tls.crt", "tls.key", "k", "accessKey", "secretKey", "credential")
_TYPES = {"s": "kubernetes.io/basic-auth", "t": "kubernetes.io/tls"}
_AGENT = Agent(server_url="https://manager.example", token="t", ca_checksum="", image="agent")
_SERVER, _WORKER = Roles(etcd=True, control_plane=True), Roles(worker=True)
_OTHER = {"join_url": "https://10.0.0.1:9345", "labels": {"a": "b", "c": "d"}}
MACHINES = (
    MachineInputs("s", "u1", _SERVER, is_init=True, internal_addresses=("10.0.0.1",), labels={"a": "b", "c": "d"}),
    MachineInputs("w", "u2", _WORKER, internal_addresses=("10.0.0.2",), **_OTHER),
    MachineInputs("x", "u3", _WORKER, internal_addresses=("10.0.0.3",), windows=True, **_OTHER),
)
"""The last one is only for RKE2, which alone has Windows nodes."""


def _check_plans(number: int, control_plane: Object, report: Report) -> None:
    try:
        errors = [*_config_errors(control_plane)]
    except Exception:
        report.failed(number, traceback.format_exc(limit=-4))
        return
    report.outcomes["reported by the planner" if errors else "planned"] += 1
    for error in errors:
        if ": " not in error:
            report.failed(number, f"reported without a field: {error}")


def _config_errors(control_plane: Object) -> Iterator[str]:
    """The errors that would be reported; any other exception fails the cluster."""
    spec = control_plane["spec"]
    try:
        agent_variables(spec)
    except BadVariable as bad:
        yield str(bad)
    distribution = distribution_of(spec["kubernetesVersion"])
    inputs = ClusterInputs(
        namespace=WORKSPACE,
        name="demo",
        management_name=spec["managementClusterName"],
        version=spec["kubernetesVersion"],
        spec={key: value for key, value in spec.items() if key != "upgradeStrategy"},
        annotations=control_plane["metadata"]["annotations"],
        server_token="S",
        agent_token="A",
        authorities=dict.fromkeys(distribution.authorities, Authority("certificate", "key")),
        agent=_AGENT,
        installer_image="rancher/system-agent-installer-",
        referenced={reference: _referenced(reference) for reference in distribution.references(spec, WORKSPACE)},
    )
    for machine in MACHINES if distribution.name == "rke2" else MACHINES[:2]:
        try:
            distribution.render(inputs.for_workers if machine.roles.only_worker else inputs, machine).to_json()
        except ConfigError as error:
            yield str(error)
    _reconcile_planner(spec)


def _referenced(reference: Reference) -> Referenced:
    data = dict.fromkeys(_KEYS, b"x")
    return Referenced({names.AUTHORIZED_CLUSTERS: "demo"}, data, _TYPES.get(reference.name, "Opaque"))


def _reconcile_planner(spec: Object) -> None:
    """With machines that have earlier plans, to cover drains and concurrency."""
    control_plane_spec = {**spec, "clusterName": objects.NAME, "managementClusterName": ""}
    servers = machine_with_plan("a", objects.SERVER, init=True, plan=objects.plan_of())
    workers = machine_with_plan("b", (objects.WORKER,), plan=objects.plan_of())
    cluster_objects = (objects.cluster(), objects.control_plane(**control_plane_spec), objects.beacon(), TOKENS)
    reconcile_planner(*servers, *workers, cluster_objects=cluster_objects)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first cluster")
    options = parser.parse_args()
    report = Report(on_failure=print)
    for first in range(options.first, options.first + options.clusters, BATCH):
        numbers = range(first, min(first + BATCH, options.first + options.clusters))
        run({number: invalid_spec(options.seed, number) for number in numbers}, report)
    print(f"seed {options.seed}: {report}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
