"""Clusters that are almost right: each is refused with the field's name where it is written, or becomes objects and
plans, or an error that is told. Nothing raises out of a reconciler.

python -m tests.unit.controllers.provisioning.odd_clusters --clusters 20000 [--seed 1] [--first 0]
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import copy
import logging
import random
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
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.node.install import BadVariable, agent_variables
from herder.controllers.planner import controller as planner
from herder.controllers.planner.distributions.interface import (
    Authority,
    ClusterInputs,
    ConfigError,
    MachineInputs,
    Reference,
    Referenced,
    Roles,
)
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.engine.meta.errors import BadRequest, Invalid
from herder.engine.meta.kinds import Object
from herder.sim import loop
from tests.fuzz.mutating import NUMBERS, WORDS, often_mutated
from tests.support.views import view_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.test_controller import TOKENS, one
from tests.unit.controllers.provisioning.provisioned import KINDS, WORKSPACE, Pasture, cluster, config, new, pool

RAISED = "cannot be validated"  # in the message of a rule that raised
BATCH = 100  # clusters that are in one world together, in a long run
SETTLING = 60.0  # virtual seconds in which all of them have been looked at
VERSIONS: dict[str, Object] = {
    "v1.34.1+k3s1": {"tls-san": ["a.example"], "kubelet-arg": ["a=b"], "flannel-backend": "none", "debug": True},
    "v1.34.1+rke2r1": {"tls-san": ["a.example"], "cni": "calico", "cloud-provider-name": "aws", "profile": "cis"},
    "v1.36.3+kubeadm1": {"tls-san": ["a.example"], "kubelet-arg": ["v=2"], "node-taint": ["a=b:NoExecute"]},
    "v1.36.3+herder1": {"tls-san": ["a.example"], "node-label": ["a=b"], "node-taint": "a:NoSchedule"},
}
"""Of each distribution: something that its machines can be told."""

# --- what people write ----------------------------------------------------------------------------------------------

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
    "rotateCertificates": {"generation": 1, "services": ["etcd"]},
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
    "redeploySystemAgentGeneration": 1,
}
DIGITS = "9" * 5000
TEXTS = (
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
"""Text that a parser or a conversion of numbers may choke on."""
NEAR: tuple[Any, ...] = (
    *TEXTS,
    *("http://[", "https://u@h:x/", "h:99999", "//", ":::", "10.0.0.0/8", "secret://", "secret://a:b", "a:b:c", "a,b"),
    *("[3-1]", "[1-99999999999999999999]", "99999999999999999999", "0%", "101%", "1.5%", "1h1", "-1s", "9" * 20 + "h"),
    *("In", "Gt", "'", "a=b", "=", "a=", "=b", "a:NoExecute", "/..", "../x", "/a b", "/a;b", "C:\\x", "9999", "a\tb"),
    *("v1.34.1+k3s", "v1.34.1+k3s1-x", "v0.0.0+rke2r0", "\ud7ff", None, True, [], {}, *WORDS, *NUMBERS),
)


def sound_spec(dice: random.Random, number: int) -> Object:
    """Some parts of all that there are. A machine config is of one cluster alone."""
    reference = {"kind": KINDS.config.kind, "name": _name(number)}
    version = dice.choice([*VERSIONS])
    told = VERSIONS[version]
    asked = {
        **copy.deepcopy(_RKE_CONFIG),
        "machinePools": [each | {"machineConfigRef": reference} for each in _RKE_CONFIG["machinePools"]],
        "machineGlobalConfig": told,
        "machineSelectorConfig": [{"machineLabelSelector": _SELECTOR, "config": told}, {"config": told}],
    }
    if version.partition("+")[2].startswith("kubeadm"):
        asked["registries"] |= {"mirrors": {"docker.io": {"endpoint": [_MIRROR]}}}  # containerd cannot rewrite names
    parts = dice.sample([*asked], dice.randrange(1, len(asked)))
    own = dice.sample([*_SPEC], dice.randrange(len(_SPEC)))
    rke_config = {part: asked[part] for part in parts}
    return {"kubernetesVersion": version, "rkeConfig": rke_config, **{part: _SPEC[part] for part in own}}


def whole_spec(version: str) -> Object:
    """Every part that there is, at once."""
    told = VERSIONS[version]
    selected = [{"machineLabelSelector": _SELECTOR, "config": told}]
    config = {**_RKE_CONFIG, "machineGlobalConfig": told, "machineSelectorConfig": selected}
    return {"kubernetesVersion": version, "rkeConfig": config, **_SPEC}


def with_texts(spec: Object) -> Iterator[tuple[str, Object]]:
    """Each text in it replaced by each of TEXTS, with the place and the number of the text."""
    for place in _places(spec):
        found: Any = spec
        for key in place:
            found = found[key]
        for number, text in enumerate(TEXTS if isinstance(found, str) else ()):
            yield f"{'.'.join(map(str, place))} {number}", _with(spec, place, text)


def odd_spec(seed: int, number: int) -> Object:
    """The same for the same two numbers. Mostly one part is wrong, or nearly; sometimes anything."""
    dice = random.Random(f"{seed}/{number}")
    spec = sound_spec(dice, number)
    change = _nearly if dice.random() < 0.5 else often_mutated
    within = spec["rkeConfig"] if dice.random() < 0.7 else spec
    part = dice.choice([*within])
    if dice.random() < 0.9:
        within[part] = change(within[part], dice)
        return spec
    changed = change(spec, dice)
    return changed if isinstance(changed, dict) else {"rkeConfig": changed}


def _nearly(value: Any, dice: random.Random) -> Any:
    """One of all values in it is something that is right in another place, or almost."""
    return _with(value, dice.choice([*_places(value)]), dice.choice(NEAR))


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


# --- what becomes of it ---------------------------------------------------------------------------------------------


@dataclass
class Told:
    """What became of how many, and what went wrong: the number of the cluster, and how."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    report_status: Callable[[str], None] = lambda _line: None  # of failures, as they are found

    def failed(self, number: int, why: str) -> None:
        """The first thing that goes wrong is what the rest may follow from."""
        if number not in self.failures:
            self.failures[number] = why
            self.report_status(f"  {number}: {why}")

    def __str__(self) -> str:
        became = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        return f"{self.outcomes.total()} clusters: {became}; {len(self.failures)} failures"


def run(specs: Mapping[int, Object], told: Told) -> Told:
    """By the numbers of the clusters, all in one world."""
    loop.run(_live_through(specs, told))
    return told


async def _live_through(specs: Mapping[int, Object], told: Told) -> None:
    """Without Cluster API's core: how many machines are asked for is of no interest here."""
    pasture, complaints = Pasture(core=(), controllers=(planner.CONTROLLER,)), _Complaints()
    logging.getLogger("herder").addHandler(complaints)
    try:
        async with pasture.world:
            await pasture.prepare()
            await pasture.create(SECRET, new(SECRET, "cc", WORKSPACE))
            await pasture.create(PROVISIONING_CLUSTER, cluster(pool("workers")))
            for number in specs:
                await pasture.create(KINDS.config, config(_name(number), image="debian"))
            kept = [number for number, spec in specs.items() if await _is_kept(pasture, number, spec, told)]
            await asyncio.sleep(SETTLING)
            for number, complaint in complaints:
                told.failed(number, complaint)
            for number in kept:
                await _judge(pasture, number, told)
    finally:
        logging.getLogger("herder").removeHandler(complaints)


async def _is_kept(pasture: Pasture, number: int, spec: Object, told: Told) -> bool:
    """What is refused must say where. An edit is refused or not, and never anything else."""
    known = await pasture.cluster()
    try:
        client = pasture.world.client
        await client.update(PROVISIONING_CLUSTER.resource, {**known, "spec": spec}, dry_run=True)
    except (Invalid, BadRequest) as refused:
        if RAISED in refused.message:
            told.failed(number, f"an edit: a rule raises: {refused.message}")
    except Exception as error:
        told.failed(number, f"an edit: {type(error).__name__}: {error}")
    try:
        await pasture.create(PROVISIONING_CLUSTER, new(PROVISIONING_CLUSTER, _name(number), WORKSPACE) | {"spec": spec})
    except Invalid as refused:
        told.outcomes["refused"] += 1
        if not all(cause.get("field") for cause in (refused.details or {}).get("causes") or [{}]):
            told.failed(number, f"refused without a field: {refused.message}")
        if RAISED in refused.message:
            told.failed(number, f"a rule raises: {refused.message}")
        return False
    except BadRequest:
        told.outcomes["refused"] += 1
        return False
    except Exception as error:
        told.failed(number, f"written: {type(error).__name__}: {error}")
        return False
    return True


async def _judge(pasture: Pasture, number: int, told: Told) -> None:
    kept = await pasture.get(PROVISIONING_CLUSTER, _name(number))
    plane = await pasture.get(CONTROL_PLANE, _name(number))
    assert kept is not None
    problem = (find(kept, "Stalled") or {}).get("message", "")
    if kept["spec"].get("rkeConfig") is None:
        told.outcomes["imported"] += 1
    elif problem:
        told.outcomes["told"] += 1
        if not problem.startswith(("spec.", "spec:")):
            told.failed(number, f"told without a field: {problem}")
    elif plane is None:
        told.failed(number, f"nothing was made of it, and nothing told: {kept.get('status')}")
    else:
        _plan(number, plane, told)


def _name(number: int) -> str:
    return f"odd-{number}"


class _Complaints(logging.Handler):
    """What went wrong in the manager: passes that failed, and what could not even be looked at."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """One by one, by the number of the cluster; -1 where that cannot be told."""
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
"""The last is for RKE2 alone, as all Windows machines are."""


def _plan(number: int, plane: Object, told: Told) -> None:
    try:
        problems = [*_problems(plane)]
    except Exception:
        told.failed(number, traceback.format_exc(limit=-4))
        return
    told.outcomes["told by the planner" if problems else "planned for"] += 1
    for problem in problems:
        if ": " not in problem:
            told.failed(number, f"told without a field: {problem}")


def _problems(plane: Object) -> Iterator[str]:
    """What is told of it; anything else that is raised is told to nobody."""
    spec = plane["spec"]
    try:
        agent_variables(spec)
    except BadVariable as bad:
        yield str(bad)
    distribution = distribution_of(spec["kubernetesVersion"])
    given = ClusterInputs(
        namespace=WORKSPACE,
        name="demo",
        management_name=spec["managementClusterName"],
        version=spec["kubernetesVersion"],
        spec={part: value for part, value in spec.items() if part != "upgradeStrategy"},
        annotations=plane["metadata"]["annotations"],
        server_token="S",
        agent_token="A",
        authorities=dict.fromkeys(distribution.authorities, Authority("certificate", "key")),
        agent=_AGENT,
        installer_image="rancher/system-agent-installer-",
        referenced={reference: _referenced(reference) for reference in distribution.references(spec, WORKSPACE)},
    )
    for machine in MACHINES if distribution.name == "rke2" else MACHINES[:2]:
        try:
            distribution.render(given.for_workers if machine.roles.only_worker else given, machine).to_json()
        except ConfigError as told:
            yield str(told)
    _pass_of_the_planner(spec)


def _referenced(reference: Reference) -> Referenced:
    data = dict.fromkeys(_KEYS, b"x")
    return Referenced({names.AUTHORIZED_CLUSTERS: "demo"}, data, _TYPES.get(reference.name, "Opaque"))


def _pass_of_the_planner(spec: Object) -> None:
    """With machines that have plans of before: they are to be drained and changed, as many at once as is asked for."""
    asked = {**spec, "clusterName": objects.NAME, "managementClusterName": ""}
    servers = one("a", objects.SERVER, init=True, plan=objects.plan_of())
    workers = one("b", (objects.WORKER,), plan=objects.plan_of())
    around = (objects.cluster(), objects.control_plane(**asked), objects.beacon())
    key = f"{objects.NAMESPACE}/{objects.NAME}"
    planner.reconcile(view_of(planner.CONTROLLER, key, (*around, TOKENS, *servers, *workers)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    options = parser.parse_args()
    told = Told(report_status=print)
    for first in range(options.first, options.first + options.clusters, BATCH):
        numbers = range(first, min(first + BATCH, options.first + options.clusters))
        run({number: odd_spec(options.seed, number) for number in numbers}, told)
    print(f"seed {options.seed}: {told}")
    return 1 if told.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
