"""Pre-bootstrap: until a new cluster has its required Secrets, control planes apply only a bootstrap agent, which
depends on nothing in the cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from herder.api.capi.kinds import SECRET_METADATA
from herder.api.management import secret_sync
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.manifest import Agent
from herder.api.management.names import token_secret
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan_secret import PlanSecret, encoded
from herder.controllers.planner.controller import CONTROLLER
from herder.controllers.planner.distributions.interface import Distribution, Roles
from herder.controllers.planner.distributions.rancher.distribution import Rancher
from herder.controllers.planner.distributions.rancher.runtime import K3S, RKE2
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Decision, EffectResult
from tests.support.builders import new_condition, new_object, patches_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.distributions.inputs import cluster, server, variables, with_agent, worker
from tests.unit.controllers.planner.objects import (
    CLUSTER_OBJECTS,
    NAME,
    control_plane_conditions,
    machine_with_plan,
    reconcile_planner,
)

ID = "c-m-bcdfghjk"
TOKEN = objects.secret(token_secret("default-token"), ID, metadata={"resourceVersion": "7"})
TOKEN_READ = EffectResult({**TOKEN, "data": {"token": encoded("t" * 54), "expiresAt": encoded("2027-01-01T00:00:00Z")}})
RESULTS = {(names.READ_OBJECT, "Secret", ID, TOKEN["metadata"]["name"], TOKEN["metadata"]["uid"], "7"): TOKEN_READ}
FLAGS = {"server-url": "https://herder.example"}


def required_secret(clusters: str = NAME, required_first: str = "true") -> Object:
    annotations = {names.AUTHORIZED_CLUSTERS: clusters, secret_sync.SYNC_BOOTSTRAP: required_first}
    return objects.secret("credentials", annotations=annotations)


def management_cluster(status: str = "", message: str = "") -> Object:
    conditions = [new_condition(secret_sync.PRE_BOOTSTRAPPED, status, message=message)] if status else []
    return new_object(MANAGEMENT_CLUSTER, ID, status={"conditions": conditions})


def decide_plans(*existing: Object, plan: tuple[Object, Object] | None = None, **status: Any) -> Decision:
    """Plan a cluster with one machine. With `plan`, that machine can be joined, and the endpoint of the cluster is
    known."""
    endpoint: dict[str, Any] = {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}} if plan else {}
    control_plane = objects.control_plane(status, managementClusterName=ID, **endpoint)
    cluster_objects = (objects.cluster(), control_plane, *CLUSTER_OBJECTS[2:])
    return reconcile_planner(
        *(plan or machine_with_plan(init=True)),
        TOKEN,
        *existing,
        cluster_objects=cluster_objects,
        results=RESULTS,
        flags=FLAGS,
    )


def deployment(decision: Decision) -> Object:
    (write,) = patches_of(decision, PLAN_SECRET)
    plan = PlanSecret(apply_merge_patch(machine_with_plan(init=True)[1], write.patch)).plan
    assert plan is not None
    file = next(each for each in plan.files if each.path.endswith("/cluster-agent.yaml"))
    return next(each for each in yaml.safe_load_all(file.decoded) if each["kind"] == "Deployment")


# --- the bootstrap agent --------------------------------------------------------------------------------------------


def test_the_bootstrap_agent_uses_the_host_network_and_tolerates_uninitialized_nodes() -> None:
    first = deployment(decide_plans(required_secret(), management_cluster()))
    assert first["metadata"]["name"] == "cattle-cluster-agent-bootstrap"
    pod = first["spec"]["template"]["spec"]
    assert pod["hostNetwork"] is True
    keys = {each["key"] for each in pod["tolerations"]}
    assert "node.cloudprovider.kubernetes.io/uninitialized" in keys
    features = {"name": "CATTLE_FEATURES", "value": "provisioningprebootstrap=true"}
    assert features in pod["containers"][0]["env"]


@pytest.mark.parametrize(
    "existing",
    [
        (management_cluster(),),
        (management_cluster(), required_secret("other")),
        (management_cluster(), required_secret(required_first="yes")),
        (management_cluster("True"), required_secret()),
    ],
    ids=[
        "no Secret",
        "a Secret of another cluster",
        "a Secret that is not required first",
        "pre-bootstrap is complete",
    ],
)
def test_otherwise_the_usual_agent_is_deployed(existing: tuple[Object, ...]) -> None:
    usual = deployment(decide_plans(*existing))
    assert usual["metadata"]["name"] == "cattle-cluster-agent"
    assert "hostNetwork" not in usual["spec"]["template"]["spec"]


@pytest.mark.parametrize("runtime", [K3S, RKE2])
def test_pre_bootstrap_plans_apply_only_the_agent_and_cause_no_restart(runtime: Any) -> None:
    distribution: Distribution = Rancher(runtime)
    usual = with_agent(cluster(additionalManifest="kind: Secret"))
    agent = Agent(server_url="https://herder.example", token="t" * 54, ca_checksum="c", image="agent:1")
    first = replace(usual, agent=replace(agent, pre_bootstrap=True))
    leaves = [
        file.path.rpartition("/")[2] for file in distribution.render(first, server()).files if "/rancher/" in file.path
    ]
    assert "cluster-agent.yaml" in leaves
    assert not {"addons.yaml", f"{runtime.name}-etcd-snapshot-extra-metadata.yaml"} & set(leaves)
    plans = [distribution.render(each, server()) for each in (first, usual)]
    assert variables(plans[0])["RESTART_STAMP"] == variables(plans[1])["RESTART_STAMP"]
    etcd = distribution.render(first, server(roles=Roles(etcd=True)))
    assert not [file for file in etcd.files if file.path.endswith("/cluster-agent.yaml")]


def test_the_plan_of_a_worker_does_not_depend_on_the_agent() -> None:
    usual = with_agent(cluster())
    assert usual.agent is not None
    others = (replace(usual.agent, pre_bootstrap=True), replace(usual.agent, token="u" * 54))
    for agent in others:
        assert replace(usual, agent=agent).for_workers.digest == usual.for_workers.digest
    assert Rancher(RKE2).render(usual.for_workers, worker()) == Rancher(RKE2).render(usual, worker())


# --- waiting --------------------------------------------------------------------------------------------------------


def machine_with_applied_plan(*existing: Object) -> tuple[Object, Object]:
    _, secret = machine_with_plan(init=True)
    (write,) = patches_of(decide_plans(*existing), PLAN_SECRET)
    applied = apply_merge_patch(secret, write.patch)
    applied["metadata"]["annotations"][names.JOIN_URL] = "https://10.0.0.1:6443"
    applied["data"] |= {"plan-state": encoded("succeeded"), "appliedPlan": applied["data"]["plan"]}
    return objects.machine("a", address="10.0.0.1"), applied


@pytest.mark.parametrize(
    ("management", "message"),
    [
        (management_cluster(), "waiting for cluster pre-bootstrap to complete"),
        (
            management_cluster("False", "Secret x/y: no"),
            "waiting for cluster pre-bootstrap to complete: Secret x/y: no",
        ),
    ],
)
def test_the_rollout_waits_until_pre_bootstrap_is_complete(management: Object, message: str) -> None:
    plan = machine_with_applied_plan(required_secret(), management)
    waiting = decide_plans(required_secret(), management, plan=plan)
    assert control_plane_conditions(waiting)["Ready"] == ("Unknown", f"configuring bootstrap node(s) a: {message}")
    assert not patches_of(waiting, PLAN_SECRET)
    complete = decide_plans(required_secret(), management_cluster("True"), plan=plan)
    assert len(patches_of(complete, PLAN_SECRET)) == 1  # with the usual agent and the other manifests


def test_a_new_secret_does_not_delay_an_initialized_cluster() -> None:
    plan = machine_with_applied_plan(management_cluster())
    initialized = {"initialization": {"controlPlaneInitialized": True}, "agentConnected": True}
    decision = decide_plans(required_secret(), management_cluster(), plan=plan, **initialized)
    assert control_plane_conditions(decision)["Ready"] == ("True", "")
    assert not [each for each in patches_of(decision, PLAN_SECRET) if "data" in each.patch]


# --- what wakes the planner -----------------------------------------------------------------------------------------


def woken_control_planes(kind: Kind, before: Object | None, after: Object | None) -> set[Key]:
    """Control planes that a change wakes, by the indexes that the controller declares."""
    control_plane, key = objects.control_plane(managementClusterName=ID), Key(objects.NAMESPACE, NAME)
    indexers = CONTROLLER.indexers(CONTROLLER.kind)

    def lookup(index: tuple[str, str]) -> list[Key]:
        return [key] if index[1] in indexers[index[0]](control_plane) else []

    change = Change(Key("", (after or before or {})["metadata"]["name"]), before, after)
    watches = [watch for watch in CONTROLLER.kinds() if watch.kind == kind]
    return {found for watch in watches for found in watch.affected(change, lookup)}


def test_marked_secrets_and_completion_of_pre_bootstrap_wake_the_planner() -> None:
    expected = {Key(objects.NAMESPACE, NAME)}
    assert woken_control_planes(SECRET_METADATA, None, required_secret()) == expected
    assert woken_control_planes(SECRET_METADATA, None, required_secret("other")) == set()
    assert woken_control_planes(MANAGEMENT_CLUSTER, management_cluster(), management_cluster("True")) == expected
    assert woken_control_planes(MANAGEMENT_CLUSTER, management_cluster(), management_cluster()) == set()
