"""Everything that the spec of a provisioning Cluster has an effect on: generated objects, plans and rollouts.

All of it comes from the real reconcilers. Plain copies of the spec are left out: a copy alone has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from herder.api.capi.conditions import find
from herder.api.capi.kinds import DEFINITION, MACHINE_DEPLOYMENT, SECRET
from herder.api.machines.kinds import DYNAMIC_SCHEMA
from herder.api.management.clusters import SHARED
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import DEFAULT_TOKEN, token_secret
from herder.api.rke import names, operations
from herder.api.rke.etcd.encryption import keys_secret
from herder.api.rke.etcd.restore import mode_of, restored_spec, restores_spec
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.node.install import agent_variables
from herder.api.rke.node.plan_secret import PlanSecret, encoded
from herder.controllers.planner import controller as planner
from herder.controllers.planner.distributions.interface import ClusterInputs, Distribution
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.controllers.planner.plan.inputs import CONFIG_MAP_METADATA, InputsNotReady, cluster_inputs
from herder.controllers.planner.plan.machine_inputs import machine_inputs
from herder.controllers.planner.plan.render import Desired, Request
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.provisioning.cluster import controller as provisioning
from herder.engine.meta.kinds import Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Apply, EffectResult, Patch
from herder.engine.runtime.view import View
from tests.support.builders import new_object, owner_reference, reconcile, writes_of
from tests.support.views import view_of
from tests.unit.api.rke.fields import rollouts
from tests.unit.controllers.planner import objects as planned
from tests.unit.controllers.provisioning.objects import (
    KINDS,
    NAME,
    SCHEMA,
    WORKSPACE,
    config,
    new_management_cluster,
    stored_cluster,
)

KEY = f"{WORKSPACE}/{NAME}"
MANAGEMENT_NAME = "c-m-abcdefgh"


class Effects(NamedTuple):
    """The effects of a spec."""

    content: str  # all effects as text, to compare two specs
    errors: tuple[str, ...]  # why nothing is generated, or a plan cannot be rendered
    ignored: str  # message of the condition that reports stored values without effect


SAVED = {"rkeConfig": {"additionalManifest": "apiVersion: v1\nkind: Saved\n"}}
"""The spec in the snapshots, with the version of the cluster."""


def effects_of(spec: Object) -> Effects:
    """The effects, after admission has applied what a restore takes from its snapshot."""
    request = spec["rkeConfig"].get(operations.RESTORE)
    saved = {"kubernetesVersion": spec["kubernetesVersion"], **SAVED}
    spec = restored_spec(spec, saved, mode_of(request)) if restores_spec(request) else spec
    generated = _Generated(spec)
    errors = [generated.problem] if generated.problem else []
    plans: list[Any] = []
    if generated.control_plane:
        for found in _plans(generated):
            (errors if isinstance(found, ConfigError) else plans).append(str(found))
    fields = {name: spec["rkeConfig"].get(name) for name in ("upgradeStrategy", *operations.KINDS)}
    fields |= {operations.AGENTS: spec.get(operations.AGENTS)}
    given = {name: value for name, value in fields.items() if value}
    etcd = spec["rkeConfig"].get("etcd") or {}
    given |= {"etcd": {name: etcd[name] for name in rollouts.SCHEDULE if etcd.get(name)}}
    rollout = rollouts.trace(spec["kubernetesVersion"], json.dumps(given, sort_keys=True))
    content = json.dumps([generated.objects, plans, rollout], sort_keys=True, default=str)
    return Effects(content, tuple(errors), generated.ignored)


# --- generated objects ----------------------------------------------------------------------------------------------

_CREDENTIAL = {"accessKey": encoded("a"), "secretKey": encoded("s")}
_FILE_OWNER = {names.AUTHORIZED_CLUSTERS: NAME}
_LOGIN = {"username": encoded("u"), "password": encoded("p")}
_CLIENT = {"tls.crt": encoded("c"), "tls.key": encoded("k")}
REFERENCED = (
    new_object(SECRET, "cc", WORKSPACE, data=_CREDENTIAL, type="Opaque"),
    new_object(SECRET, "login", WORKSPACE, data=_LOGIN, type=names.AUTH_SECRET_TYPE),
    new_object(SECRET, "client", WORKSPACE, data=_CLIENT, type="kubernetes.io/tls"),
    *(
        new_object(SECRET, name, WORKSPACE, annotations=_FILE_OWNER, data={"a": encoded(name), "b": encoded("b")})
        for name in ("files", "other-files")
    ),
    *(
        new_object(CONFIG_MAP_METADATA, name, WORKSPACE, annotations=_FILE_OWNER, data={"a": name, "b": "b"})
        for name in ("files", "other-files")
    ),
)
_DEFINITIONS = [new_object(DEFINITION, f"{kind.plural}.{kind.group}") for kind in (*KINDS.all, DYNAMIC_SCHEMA)]


class _Generated:
    """What the controller of provisioning Clusters writes."""

    def __init__(self, spec: Object) -> None:
        cluster = stored_cluster(spec=spec)
        self.management = new_management_cluster(MANAGEMENT_NAME, created_for=KEY)
        given = (cluster, self.management, SCHEMA, config("sheds", image="debian", size="s"), *REFERENCED)
        kinds = (*KINDS.all, DYNAMIC_SCHEMA)
        decision = reconcile(provisioning.CONTROLLER, KEY, *given, *_DEFINITIONS, dynamic_kinds=kinds)
        self.problem, self.ignored = "", ""
        self.objects: list[Object] = []
        self.control_plane: Object = {}
        self.deployments: list[Object] = []
        for write in writes_of(decision):
            if isinstance(write, Apply):
                self._add_object(write.obj)
            elif isinstance(write, Patch):
                self._add_patch(write)
        if decision.wait is not None and not self.control_plane:
            self.problem = decision.wait.reason

    def _add_object(self, obj: Object) -> None:
        if obj["kind"] == CONTROL_PLANE.kind:
            self.control_plane = obj
            marks = {key: value for key, value in obj["metadata"]["annotations"].items() if key != names.CLUSTER_SPEC}
            obj = {**obj, "metadata": {**obj["metadata"], "annotations": marks}, "spec": {}}
        elif obj["kind"] == MACHINE_DEPLOYMENT.kind:
            self.deployments.append(obj)
        self.objects.append(obj)

    def _add_patch(self, write: Patch) -> None:
        if write.ref.kind == PROVISIONING_CLUSTER and write.subresource == "status":
            self.ignored = (find({"status": write.patch["status"]}, "FieldsIgnored") or {}).get("message", "")
            return
        patch = write.patch
        if write.ref.kind == MANAGEMENT_CLUSTER:
            self.management = apply_merge_patch(self.management, patch)
            own = {
                key: value for key, value in (patch.get("spec") or {}).items() if key not in (*SHARED, "agentEnvVars")
            }
            patch = {**patch, "spec": own}
        self.objects.append({"name": write.ref.name, "patch": patch})


# --- plans ----------------------------------------------------------------------------------------------------------


def _plans(generated: _Generated) -> Iterator[str | ConfigError]:
    """Environment of the node agent, and the plan of one machine per pool."""
    control_plane = generated.control_plane
    yield str(agent_variables(control_plane["spec"]))
    distribution = distribution_of(control_plane["spec"]["kubernetesVersion"])
    view, inputs = _cluster_inputs(generated, distribution)
    for number, deployment in enumerate(generated.deployments, start=1):
        entry = _entry(deployment, f"10.0.0.{number}")
        try:
            request = Request.of(distribution, inputs, machine_inputs(view, entry, "https://10.0.0.9:9345"))
            yield Desired(entry, request).plan.to_json().decode()
        except ConfigError as error:
            yield error


def _cluster_inputs(generated: _Generated, distribution: Distribution) -> tuple[View, ClusterInputs]:
    """Read the inputs as the planner does, until it has read all objects that plans refer to."""
    control_plane = {**generated.control_plane, "metadata": {**generated.control_plane["metadata"], "uid": "plane"}}
    # The encoded spec becomes part of plans, for restores; a plain copy has no effect.
    control_plane["metadata"]["annotations"] = {names.CLUSTER_SPEC: "encoded"}
    owner = {**owner_reference(CONTROL_PLANE, NAME, controller=False), "uid": "plane"}
    authorities = [
        new_object(
            SECRET,
            names.authority_secret(NAME, purpose),
            WORKSPACE,
            owners=[owner],
            data={"tls.crt": encoded("certificate"), "tls.key": encoded("key")},
        )
        for purpose in distribution.authorities
    ]
    objects = [
        control_plane,
        generated.management,
        {**planned.TOKENS, "metadata": {**planned.TOKENS["metadata"], "name": names.tokens_secret(NAME)}},
        new_object(SECRET, token_secret(DEFAULT_TOKEN), MANAGEMENT_NAME, data=rollouts.REGISTRATION),
        *authorities,
        new_object(SECRET, keys_secret(NAME), WORKSPACE, owners=[owner], data={"key-1": encoded("first")}),
        *REFERENCED,
    ]
    stored = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}
    results: dict[Any, EffectResult] = {}
    while True:
        view = view_of(planner.CONTROLLER, KEY, objects, results=results, settings=rollouts.SETTINGS)
        try:
            return view, cluster_inputs(view, control_plane, distribution, has_plans=False)
        except InputsNotReady as missing:
            if not missing.effects:
                raise
            for effect in missing.effects:
                results[effect.key] = EffectResult(stored[effect.arguments["kind"], effect.arguments["name"]])


def _entry(deployment: Object, address: str) -> PlanEntry:
    """A machine of the pool. The first server is the init node."""
    name, template = deployment["metadata"]["name"], deployment["spec"]["template"]["metadata"]
    labels = {**template["labels"], names.MACHINE_NAME: name}
    if labels.get(names.ETCD_ROLE) or labels.get(names.CONTROL_PLANE_ROLE):
        labels[names.INIT_NODE] = "true"
    addresses = {names.INTERNAL_ADDRESS: address, names.ADDRESS: address}
    secret = planned.plan_secret(
        name, (), labels=labels, annotations={**(template.get("annotations") or {}), **addresses}
    )
    machine = planned.machine(name)
    machine["metadata"]["labels"] = template["labels"]
    return PlanEntry(machine, PlanSecret(secret))
