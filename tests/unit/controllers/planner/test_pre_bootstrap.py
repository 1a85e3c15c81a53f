"""A new cluster that must have Secrets of ours first: until then its servers apply an agent that needs nothing of the
cluster, and nothing else."""

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
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAME, made
from tests.unit.controllers.planner.test_controller import SOUND, conditions, decide, one, patches
from tests.unit.controllers.planner.test_files import with_agent
from tests.unit.controllers.planner.test_vectors import cluster, server, variables, worker

ID = "c-m-bcdfghjk"
TOKEN = made("v1", "Secret", token_secret("default-token"), metadata={"namespace": ID, "resourceVersion": "7"})
TOKEN_READ = EffectResult({**TOKEN, "data": {"token": encoded("t" * 54), "expiresAt": encoded("2027-01-01T00:00:00Z")}})
RESULTS = {(names.READ_OBJECT, "Secret", ID, TOKEN["metadata"]["name"], TOKEN["metadata"]["uid"], "7"): TOKEN_READ}
FLAGS = {"server-url": "https://herder.example"}


def synced(clusters: str = NAME, first: str = "true") -> Object:
    marks = {names.AUTHORIZED_CLUSTERS: clusters, secret_sync.SYNC_BOOTSTRAP: first}
    return made("v1", "Secret", "credentials", metadata={"annotations": marks})


def managed(status: str = "", message: str = "") -> Object:
    told = [{"type": secret_sync.PRE_BOOTSTRAPPED, "status": status, "message": message}] if status else []
    api = MANAGEMENT_CLUSTER.api_version
    return made(api, "Cluster", ID, metadata={"namespace": ""}, status={"conditions": told})


def planned(*there: Object, plan: tuple[Object, Object] | None = None, **status: Any) -> Decision:
    """`plan`: of a machine that can be joined, so where the cluster answers is written down."""
    known: dict[str, Any] = {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}} if plan else {}
    plane = objects.control_plane(status, managementClusterName=ID, **known)
    around = (objects.cluster(), plane, *SOUND[2:])
    return decide(*(plan or one(init=True)), TOKEN, *there, around=around, results=RESULTS, flags=FLAGS)


def deployment(decision: Decision) -> Object:
    (write,) = patches(decision, PLAN_SECRET)
    plan = PlanSecret(apply_merge_patch(one(init=True)[1], write.patch)).plan
    assert plan is not None
    file = next(each for each in plan.files if each.path.endswith("/cluster-agent.yaml"))
    return next(each for each in yaml.safe_load_all(file.decoded) if each["kind"] == "Deployment")


# --- the agent that comes first -------------------------------------------------------------------------------------


def test_it_runs_on_the_host_s_network_and_on_nodes_that_no_cloud_provider_has_seen() -> None:
    first = deployment(planned(synced(), managed()))
    assert first["metadata"]["name"] == "cattle-cluster-agent-bootstrap"
    pod = first["spec"]["template"]["spec"]
    assert pod["hostNetwork"] is True
    keys = {each["key"] for each in pod["tolerations"]}
    assert "node.cloudprovider.kubernetes.io/uninitialized" in keys
    features = {"name": "CATTLE_FEATURES", "value": "provisioningprebootstrap=true"}
    assert features in pod["containers"][0]["env"]


@pytest.mark.parametrize(
    "there",
    [
        (managed(),),
        (managed(), synced("other")),
        (managed(), synced(first="yes")),
        (managed("True"), synced()),
    ],
    ids=["no Secret", "another cluster's", "one that need not come first", "it has them"],
)
def test_else_it_is_the_one_that_every_cluster_has(there: tuple[Object, ...]) -> None:
    usual = deployment(planned(*there))
    assert usual["metadata"]["name"] == "cattle-cluster-agent"
    assert "hostNetwork" not in usual["spec"]["template"]["spec"]


@pytest.mark.parametrize("runtime", [K3S, RKE2])
def test_control_planes_apply_nothing_else_and_start_no_differently(runtime: Any) -> None:
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


def test_a_worker_s_plan_does_not_depend_on_it_nor_on_the_token() -> None:
    usual = with_agent(cluster())
    assert usual.agent is not None
    others = (replace(usual.agent, pre_bootstrap=True), replace(usual.agent, token="u" * 54))
    for agent in others:
        assert replace(usual, agent=agent).for_workers.digest == usual.for_workers.digest
    assert Rancher(RKE2).render(usual.for_workers, worker()) == Rancher(RKE2).render(usual, worker())


# --- what is waited for ---------------------------------------------------------------------------------------------


def with_its_plan(*there: Object) -> tuple[Object, Object]:
    _, secret = one(init=True)
    (write,) = patches(planned(*there), PLAN_SECRET)
    applied = apply_merge_patch(secret, write.patch)
    applied["metadata"]["annotations"][names.JOIN_URL] = "https://10.0.0.1:6443"
    applied["data"] |= {"plan-state": encoded("succeeded"), "appliedPlan": applied["data"]["plan"]}
    return objects.machine("a", address="10.0.0.1"), applied


@pytest.mark.parametrize(
    ("management", "message"),
    [
        (managed(), "waiting for cluster pre-bootstrap to complete"),
        (managed("False", "Secret x/y: no"), "waiting for cluster pre-bootstrap to complete: Secret x/y: no"),
    ],
)
def test_nobody_else_is_planned_for_until_the_cluster_has_them(management: Object, message: str) -> None:
    plan = with_its_plan(synced(), management)
    waits = planned(synced(), management, plan=plan)
    assert conditions(waits)["Ready"] == ("Unknown", f"configuring bootstrap node(s) a: {message}")
    assert not patches(waits, PLAN_SECRET)
    plans = planned(synced(), managed("True"), plan=plan)
    assert len(patches(plans, PLAN_SECRET)) == 1  # with the usual agent, and what else is applied


def test_a_cluster_that_has_answered_is_not_made_to_wait_by_a_new_secret() -> None:
    plan = with_its_plan(managed())
    initialized = {"initialization": {"controlPlaneInitialized": True}, "agentConnected": True}
    decision = planned(synced(), managed(), plan=plan, **initialized)
    assert conditions(decision)["Ready"] == ("True", "")
    assert not [each for each in patches(decision, PLAN_SECRET) if "data" in each.patch]


# --- what wakes the planner -----------------------------------------------------------------------------------------


def woken(kind: Kind, before: Object | None, after: Object | None) -> set[Key]:
    """Of one control plane, by the indexes that the controller declares."""
    plane, key = objects.control_plane(managementClusterName=ID), Key(objects.NAMESPACE, NAME)
    indexers = CONTROLLER.indexers(CONTROLLER.kind)

    def lookup(index: tuple[str, str]) -> list[Key]:
        return [key] if index[1] in indexers[index[0]](plane) else []

    change = Change(Key("", (after or before or {})["metadata"]["name"]), before, after)
    watches = [watch for watch in CONTROLLER.kinds() if watch.kind == kind]
    return {found for watch in watches for found in watch.affected(change, lookup)}


def test_a_secret_that_is_marked_and_the_news_that_all_are_there_wake_it() -> None:
    plane = {Key(objects.NAMESPACE, NAME)}
    assert woken(SECRET_METADATA, None, synced()) == plane
    assert woken(SECRET_METADATA, None, synced("other")) == set()
    assert woken(MANAGEMENT_CLUSTER, managed(), managed("True")) == plane
    assert woken(MANAGEMENT_CLUSTER, managed(), managed()) == set()
