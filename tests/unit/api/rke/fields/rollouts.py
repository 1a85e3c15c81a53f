"""How a change is rolled out: in which order machines get their plans, and how their Nodes are drained."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from typing import Any

import msgspec

from herder.api.capi.kinds import NODE, SECRET
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import DEFAULT_TOKEN, token_secret
from herder.api.rke import names, operations
from herder.api.rke.etcd.encryption import MAKE_KEY
from herder.api.rke.kinds import ETCD_SNAPSHOT, PLAN_SECRET
from herder.api.rke.node.plan_secret import PlanSecret, encoded
from herder.api.settings import Settings
from herder.controllers.planner import controller as planner
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.controllers.planner.drain import controller as drains
from herder.engine.meta.kinds import Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Decision, EffectResult, Observe, Patch
from herder.engine.runtime.view import Observed
from tests.support.builders import NOW, new_object, owner_reference_to, reconcile, writes_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import ETCD, NAME, NAMESPACE, PLANE, WORKER

MANAGEMENT_NAME = "c-m-1"
REGISTRATION = {"token": encoded("t" * 54), "expiresAt": encoded("2027-01-01T00:00:00Z")}
SETTINGS = Settings(
    flags={"server-url": "https://herder.example"},
    detected={"served-system-agent": f"1.0.0 {'a' * 64}"},
).get
_MAX_PASSES = 60
_WORKERS = {"w1": (WORKER,), "w2": (WORKER,)}
_MACHINES = {
    "k3s": {"e1": (ETCD,), "c1": (PLANE,), "c2": (PLANE,), "c3": (PLANE,), **_WORKERS},
    "rke2": {"e1": (ETCD,), "c1": (PLANE,), "c2": (PLANE,), "c3": (PLANE,), **_WORKERS},
    "kubeadm": {**dict.fromkeys(("s1", "s2", "s3"), (ETCD, PLANE)), **_WORKERS},
    "embedded": {"s1": (ETCD, PLANE), **_WORKERS},
}
"""Machines by distribution. The first one is the init node; only K3s and RKE2 have machines with part of the roles."""


SNAPSHOTS = ("before", "other")
SCHEDULE = ("disableSnapshots", "snapshotRetention", "snapshotScheduleCron")
"""Fields of `etcd` that the trace covers: a scheduled snapshot is due when the rollout begins."""


@cache
def trace(version: str, fields: str) -> list[Any]:
    """The steps of a rollout with this upgrade strategy and these operations (JSON), until all machines are done."""
    return [*_Rollout(version, json.loads(fields)).steps()]


class _Rollout:
    """Machines with an earlier plan. Agents and drains succeed at once."""

    def __init__(self, version: str, fields: Object) -> None:
        self._distribution = distribution_of(version)
        # Only plans of the embedded distribution need the manager's address, which comes with the cluster agent.
        management = MANAGEMENT_NAME if self._distribution.name == "embedded" else ""
        spec = {"kubernetesVersion": version, "managementClusterName": management, **fields}
        status = {"initialization": {"controlPlaneInitialized": True}, "agentConnected": True}
        if schedule := (fields.get("etcd") or {}).get("snapshotScheduleCron"):
            status["snapshotSchedule"] = {"schedule": schedule, "lastScheduleTime": "2020-01-01T00:00:00Z"}
        plane = objects.control_plane(status, **spec)
        found = [objects.cluster(), plane, objects.beacon(), objects.TOKENS, *self._secrets(plane), *self._machines()]
        found += self._snapshots(next(each for each in found if each["kind"] == "Machine"))
        found.append(new_object(MANAGEMENT_CLUSTER, MANAGEMENT_NAME, spec={}))
        self._objects = {(obj["kind"], obj["metadata"]["name"]): obj for obj in found}
        self._results: dict[Any, EffectResult] = {}

    def _secrets(self, plane: Object) -> Iterator[Object]:
        yield new_object(SECRET, token_secret(DEFAULT_TOKEN), MANAGEMENT_NAME, data=REGISTRATION)
        for purpose in self._distribution.authorities:
            name, owners = names.authority_secret(NAME, purpose), [owner_reference_to(plane, controller=False)]
            yield new_object(SECRET, name, NAMESPACE, owners=owners, data={"tls.crt": "", "tls.key": ""})

    def _machines(self) -> Iterator[Object]:
        port = self._distribution.supervisor_port
        machines = _MACHINES[self._distribution.name]
        for number, (name, roles) in enumerate(machines.items(), start=1):
            address = f"10.0.0.{number}"
            annotations = {names.INTERNAL_ADDRESS: address, names.ADDRESS: address}
            if WORKER not in roles:
                annotations[names.JOIN_URL] = f"https://{address}:{port}"
            yield objects.machine(name, address=address)
            yield objects.plan_secret(
                name, roles, init=number == 1, plan=objects.plan_of(stamp="old"), annotations=annotations
            )

    def _snapshots(self, machine: Object) -> Iterator[Object]:
        """Snapshots on the first machine, which is the init node."""
        for name in SNAPSHOTS:
            file = {"name": f"file-{name}", "nodeName": machine["metadata"]["name"], "status": "successful"}
            owners = [owner_reference_to(machine, controller=False)]
            yield new_object(ETCD_SNAPSHOT, name, NAMESPACE, owners=owners, spec={"clusterName": NAME}) | {
                "snapshotFile": file
            }

    def steps(self) -> Iterator[Any]:
        for _ in range(_MAX_PASSES):
            before = dict(self._objects)
            decision, done = self._reconcile(), []
            for write in writes_of(decision):
                assert isinstance(write, Patch)
                key = write.ref.kind.kind, write.ref.name
                self._objects[key] = apply_merge_patch(self._objects[key], write.patch)
                if write.ref.kind == PLAN_SECRET:
                    done.append([write.ref.name, *self._finish(key)])
            yield done
            if self._objects == before and not decision.effects:
                return
        raise AssertionError("the rollout does not end")

    def _reconcile(self) -> Decision:
        key, given = f"{NAMESPACE}/{NAME}", self._objects.values()
        decision = reconcile(planner.CONTROLLER, key, *given, results=self._results, settings=SETTINGS)
        for effect in decision.effects:
            if effect.performer == MAKE_KEY:
                self._add_key(effect.arguments)
                continue
            found = self._objects[effect.arguments["kind"], effect.arguments["name"]]
            self._results[effect.key] = EffectResult(found)
        return decision

    def _add_key(self, arguments: Mapping[str, Any]) -> None:
        name, data = arguments["name"], {f"key-{arguments['generation']}": encoded("new")}
        secret = new_object(SECRET, name, NAMESPACE, owners=[arguments["owner"]], data=data)
        self._objects[secret["kind"], name] = secret

    def _finish(self, key: tuple[str, str]) -> Iterator[Any]:
        """Do what node agents and the drain controller would do, and describe it."""
        secret = self._objects[key]
        annotations, data = dict(secret["metadata"]["annotations"]), dict(secret["data"])
        requested = annotations.get(names.DRAIN_OPTIONS, "")
        if data.get("plan-state") != encoded("succeeded"):
            data |= {
                "plan-state": encoded("succeeded"),
                "appliedPlan": data["plan"],
                "applied-output": _outputs(secret),
            }
            yield from ("plan", _tasks(secret))
        if annotations.get(names.UNCORDON):
            for mark in (names.DRAIN_OPTIONS, names.DRAIN_DONE, names.UNCORDON):
                annotations.pop(mark, None)
            yield "uncordon"
        elif requested and annotations.get(names.DRAIN_DONE) != requested:
            annotations[names.DRAIN_DONE] = requested
            yield from ("drain", drain_trace(requested))
        self._objects[key] = {**secret, "metadata": {**secret["metadata"], "annotations": annotations}, "data": data}


def _outputs(secret: Object) -> str:
    """What servers report that have loaded the keys of their plan, whose hash is an argument."""
    plan = PlanSecret(secret).plan
    found = {
        each.name: f"encryption configuration {each.args[4]}".encode()
        for each in (plan.instructions if plan is not None else ())
        if each.name in (operations.RESTART_SERVICES, operations.ENCRYPT_SECRETS) and len(each.args) > 4
    }
    return base64.b64encode(gzip.compress(msgspec.json.encode(found), mtime=0)).decode()


def _tasks(secret: Object) -> list[list[str]]:
    """The tasks of operations in a plan, with their arguments and the files that they read."""
    plan = PlanSecret(secret).plan
    if plan is None:
        return []
    files = [each.content for each in plan.files]
    tasks = (each for each in plan.instructions if each.name in operations.TASK_INSTRUCTIONS)
    return [[each.name, *each.args[2:], *files] for each in tasks]


# --- drains ---------------------------------------------------------------------------------------------------------


def _pod(name: str, owner: str = "ReplicaSet", **fields: Any) -> Object:
    owners = [{"kind": owner, "name": "x", "controller": True}] if owner else []
    metadata = {"name": name, "namespace": "default", "uid": name, "ownerReferences": owners, **fields.pop("meta", {})}
    spec = {"volumes": [], **fields}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


_PODS = (
    _pod("plain"),
    _pod("alone", ""),
    _pod("daemon", "DaemonSet"),
    _pod("data", volumes=[{"name": "v", "emptyDir": {}}]),
    _pod("terminating", meta={"deletionTimestamp": "2026-01-01T11:59:50Z"}),
)
_STARTED = {names.DRAIN_STARTED: "2026-01-01T12:00:00Z"}


@cache
def drain_trace(requested: str) -> list[Any]:
    """What the drain controller does with these options, for each kind of Pod, at several times."""
    request = {names.DRAIN_OPTIONS: requested}
    hooks = {names.PRE_DRAIN: requested, names.POST_DRAIN: requested, "example.com/hook": requested}
    done = {**request, names.DRAIN_DONE: requested, names.UNCORDON: requested}
    steps = [_drain(request), _drain(request | hooks | _STARTED, _PODS), _drain(done)]
    for pod in _PODS:
        steps += [_drain(request | hooks | _STARTED, (pod,), seconds) for seconds in (1, 60)]
    without_copies = json.loads(json.dumps(steps, default=str).replace(json.dumps(requested)[1:-1], "requested"))
    return list(without_copies)


def _drain(annotations: dict[str, str], pods: tuple[Object, ...] = (), seconds: int = 0) -> Any:
    secret = objects.plan_secret("a", plan=objects.plan_of(), annotations=annotations)
    given = (secret, objects.machine("a", address="10.0.0.1"), objects.cluster())
    now = NOW + timedelta(seconds=seconds)
    node = {"metadata": {"name": "a"}, "spec": {"unschedulable": names.UNCORDON not in annotations}}

    def observed(request: Observe) -> Observed:
        return Observed((node,) if request.kind == NODE else pods, now)

    key = f"{NAMESPACE}/{secret['metadata']['name']}"
    decision = reconcile(drains.CONTROLLER, key, *given, observed=observed, now=now)
    return [str(decision.writes), str(decision.effects), str(decision.wait)]
