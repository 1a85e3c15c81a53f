"""InMemoryControlPlane: the kubeconfig, Machines and what belongs to them, what is told, and the end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import CERTIFICATE_RENEWAL, PAUSED
from herder.api.inmemory import names
from herder.api.inmemory.kinds import (
    IN_MEMORY_BOOTSTRAP,
    IN_MEMORY_CONTROL_PLANE,
    IN_MEMORY_MACHINE,
    IN_MEMORY_MACHINE_TEMPLATE,
)
from herder.api.references.approvals import APPROVED
from herder.controllers.inmemory.controlplane import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Create, Decision, Delete, EffectResult, Patch
from tests.support.views import NOW
from tests.unit.controllers.inmemory import stage
from tests.unit.controllers.inmemory.stage import cluster, condition, decide, flat, legacy, made, patched, secret

KUBECONFIG = secret("c-kubeconfig")
CLONED = "cluster.x-k8s.io/cloned-from-name"


def plane(*, replicas: int = 1, version: str = "v1.35.0", template: Object | None = None, **more: Any) -> Object:
    machine_template: Object = {"spec": {"infrastructureRef": stage.reference(IN_MEMORY_MACHINE_TEMPLATE, "t")}}
    spec = {"replicas": replicas, "version": version, "machineTemplate": machine_template | (template or {})}
    given: Any = {
        "owner": cluster(),
        "controller": False,
        "finalizers": [names.CONTROL_PLANE_FINALIZER],
        "spec": spec | more.pop("spec", {}),
    }
    return made(IN_MEMORY_CONTROL_PLANE, "cp", **(given | more))


def template(*, owned: bool = True, **inner: Any) -> Object:
    spec = {"template": {"spec": {}} | inner}
    return made(IN_MEMORY_MACHINE_TEMPLATE, "t", owner=cluster() if owned else None, controller=False, spec=spec)


def machine(name: str, *, ready: bool = True, fresh: bool = True, **more: Any) -> Object:
    labels = {"cluster.x-k8s.io/control-plane-name": "cp"}
    turned = {"lastTransitionTime": timestamp(NOW), "message": "" if ready else "it starts"}
    up_to_date = {"type": "UpToDate", "status": "True", "reason": "UpToDate", "message": ""}
    conditions = [{"type": kind, "status": str(ready), "reason": "R"} for kind in ("Ready", "Available")]
    status: Object = {"conditions": [turned | known for known in (*conditions, *([up_to_date] if fresh else []))]}
    if ready:
        status["nodeRef"] = {"name": name}
        status["initialization"] = {"infrastructureProvisioned": True}
    found = stage.machine(name, control_plane=True, owner=plane(), status=status, **more)
    found["metadata"]["labels"] |= labels
    return found


def parts(of: Object, cloned_from: str = "t") -> list[Object]:
    name = of["metadata"]["name"]
    labels = of["metadata"]["labels"]
    return [
        made(IN_MEMORY_BOOTSTRAP, name, owner=of, labels=labels, spec={}),
        made(IN_MEMORY_MACHINE, name, owner=of, labels=labels, annotations={CLONED: cloned_from}, spec={}),
    ]


def decided(of: Object, *machines: Object, others: list[Object] | None = None, **more: Any) -> Decision:
    given = [cluster(), KUBECONFIG, template()] if others is None else others
    belonging = [part for each in machines for part in parts(each)]
    return decide(CONTROLLER, "cp", of, *machines, *belonging, *given, **more)


def acts(decision: Decision) -> list[Any]:
    """All but the telling of how far it is."""
    return [w for w in flat(decision) if not (isinstance(w, Patch) and w.ref.kind == IN_MEMORY_CONTROL_PLANE)]


# --- a way in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "waits_for"),
    [
        (cluster(provisioned=False), "the cluster's infrastructure is not provisioned"),
        (cluster(endpoint=False), "the Cluster has no endpoint yet"),
    ],
)
def test_it_waits_for_the_endpoint(of: Object, waits_for: str) -> None:
    decision = decided(plane(), others=[of, template()])
    assert acts(decision) == []
    assert decision.wait is not None
    assert decision.wait.reason == waits_for


def test_the_kubeconfig_comes_before_the_first_machine() -> None:
    decision = decided(plane(), others=[cluster(), template(), secret("c-ca")])
    assert acts(decision) == []
    (effect,) = decision.effects
    assert effect.performer == "kubeconfig"
    assert effect.arguments == {"namespace": "ns", "cluster": "c", "server": "https://127.0.0.1:6443"}
    value = {"kubeconfig": "a3ViZQ==", "expires": "2027-01-01T00:00:00+00:00", "renew": "2026-07-01T00:00:00+00:00"}
    results = {effect.key: EffectResult(value)}
    (create,) = acts(decided(plane(), others=[cluster(), template(), secret("c-ca")], results=results))
    assert isinstance(create, Create)
    assert create.obj["metadata"]["name"] == "c-kubeconfig"
    assert create.obj["type"] == "cluster.x-k8s.io/secret"
    assert create.obj["data"] == {"value": "a3ViZQ=="}
    (owner,) = create.obj["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("InMemoryControlPlane", True)


def test_the_kubeconfig_is_renewed_in_time() -> None:
    renewal = NOW + timedelta(days=1)
    kept = secret("c-kubeconfig", annotations={CERTIFICATE_RENEWAL: renewal.isoformat()})
    others = [cluster(), template(), kept]
    decision = decided(plane(), machine("a"), others=others)
    assert decision.effects == ()
    assert decision.wake_at == renewal
    (effect,) = decided(plane(), machine("a"), others=others, now=renewal).effects
    assert effect.performer == "kubeconfig"


# --- machines ---------------------------------------------------------------------------------------------------


def test_a_machine_is_made_whole_and_controlled() -> None:
    metadata = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    asked = {"metadata": metadata}
    of = plane(version="1.35.0", template=asked)
    of["spec"]["machineTemplate"]["spec"]["minReadySeconds"] = 5
    (apply,) = acts(decided(of))
    assert isinstance(apply, Apply)
    made_machine = apply.obj
    assert apply.kind == MACHINE
    name = made_machine["metadata"]["name"]
    assert name.startswith("cp-")
    assert made_machine["metadata"]["labels"] == {
        "team": "a",
        "cluster.x-k8s.io/cluster-name": "c",
        "cluster.x-k8s.io/control-plane": "",
        "cluster.x-k8s.io/control-plane-name": "cp",
    }
    assert made_machine["metadata"]["annotations"] == {"note": "b"}
    assert made_machine["metadata"]["finalizers"] == ["machine.cluster.x-k8s.io"]
    assert made_machine["metadata"]["ownerReferences"][0]["controller"] is True
    assert made_machine["spec"] == {
        "clusterName": "c",
        "version": "v1.35.0",
        "minReadySeconds": 5,
        "bootstrap": {"configRef": stage.reference(IN_MEMORY_BOOTSTRAP, name)},
        "infrastructureRef": stage.reference(IN_MEMORY_MACHINE, name),
    }


def test_a_template_forges_no_record_of_approved_references() -> None:
    """Controllers trust the record in what the manager writes: any Secret could reach the author's host."""
    forged = {"annotations": {APPROVED: "[]", "note": "b"}}
    of, known = plane(template={"metadata": forged}), machine("a", ready=False)
    (created,) = acts(decided(of))
    others = [cluster(), KUBECONFIG, template(metadata=forged)]
    parts_made = flat(decide(CONTROLLER, "cp", of, known, *others))
    in_step = acts(decided(of, known))
    written = [write for write in (created, *parts_made, *in_step) if isinstance(write, Apply | Patch)]
    marks = [((write.obj if isinstance(write, Apply) else write.patch).get("metadata") or {}) for write in written]
    assert [each for each in marks if "note" in (each.get("annotations") or {})]
    assert not [each for each in marks if APPROVED in (each.get("annotations") or {})]


def test_a_machine_that_follows_another_has_another_name() -> None:
    """Whatever else has not changed meanwhile: applied to a Machine that is there, the next would come to nothing."""

    def new_name(*machines: Object) -> str:
        *_, apply = acts(decided(plane(replicas=2), *machines))
        assert isinstance(apply, Apply)
        return str(apply.obj["metadata"]["name"])

    assert new_name() == new_name()
    assert len({new_name(), new_name(machine("a")), new_name(machine("b"))}) == 3


def test_what_belongs_to_a_machine_is_the_machines_from_the_start() -> None:
    inner: Any = {"metadata": {"annotations": {names.START_DELAY: "2"}}, "spec": {"capacity": {"cpu": "8"}}}
    fresh = machine("a", ready=False)
    others = [cluster(), KUBECONFIG, template(**inner)]
    config, infra = acts(decide(CONTROLLER, "cp", plane(status={"observedGeneration": 1}), fresh, *others))
    assert [config.kind, infra.kind] == [IN_MEMORY_BOOTSTRAP, IN_MEMORY_MACHINE]
    for create in (config, infra):
        (owner,) = create.obj["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("Machine", "a", True)
        assert create.obj["metadata"]["name"] == "a"
        assert create.obj["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"] == "c"
    assert infra.obj["spec"] == {"capacity": {"cpu": "8"}}
    assert infra.obj["metadata"]["annotations"] == {
        names.START_DELAY: "2",
        CLONED: "t",
        "cluster.x-k8s.io/cloned-from-groupkind": "InMemoryMachineTemplate.inmemory.cluster.x-k8s.io",
    }


def test_machines_are_spread_over_the_failure_domains_of_control_planes() -> None:
    domains = [{"name": name, "controlPlane": name != "z0"} for name in ("z0", "z1", "z2")]
    of = plane(replicas=3, status={"observedGeneration": 1})
    others = [cluster(domains=domains), KUBECONFIG, template()]
    (apply,) = acts(decided(of, machine("a", domain="z1"), others=others))
    assert apply.obj["spec"]["failureDomain"] == "z2"


def test_a_new_version_is_rolled_out_one_machine_at_a_time() -> None:
    of = plane(version="v1.36.0")
    told, *_, apply = acts(decided(of, machine("a")))
    assert isinstance(told, Patch)
    assert condition({"status": told.patch["status"]}, "UpToDate") == (
        "False",
        "NotUpToDate",
        "* Version v1.35.0, v1.36.0 required",
    )
    assert apply.obj["spec"]["version"] == "v1.36.0"
    removed = acts(decided(of, machine("a"), machine("b", version="v1.36.0")))[-1]
    assert isinstance(removed, Delete)
    assert removed.ref.name == "a"


def test_another_template_is_rolled_out_too() -> None:
    old = machine("a")
    decision = decide(
        CONTROLLER, "cp", plane(), old, *parts(old, cloned_from="before"), cluster(), KUBECONFIG, template()
    )
    told = patched(old, decision)
    assert condition(told, "UpToDate")[2] == "* InMemoryMachine is not up-to-date"


def test_a_rollout_may_be_asked_for_by_time() -> None:
    after = NOW + timedelta(hours=1)
    of = plane(spec={"rollout": {"after": timestamp(after)}})
    decision = decided(of, machine("a"))
    assert decision.wake_at == after
    later = decided(of, machine("a"), now=after)
    assert condition(patched(machine("a"), later), "UpToDate")[2] == "* InMemoryControlPlane spec.rollout.after expired"


def test_what_may_change_in_place_follows_the_template() -> None:
    of = plane(template={"metadata": {"labels": {"team": "b"}, "annotations": {names.NODE_READY: "False"}}})
    apply, *followed = acts(decided(of, machine("a")))
    assert isinstance(apply, Apply)
    assert apply.obj["metadata"]["uid"] == "Machine-a"
    assert apply.obj["metadata"]["labels"]["team"] == "b"
    assert apply.obj["spec"]["version"] == "v1.35.0"
    for patch in followed:
        assert patch.patch["metadata"]["labels"] == {"team": "b"}
        assert patch.patch["metadata"]["annotations"] == {names.NODE_READY: "False"}
    assert [patch.ref.kind for patch in followed] == [IN_MEMORY_BOOTSTRAP, IN_MEMORY_MACHINE]


def test_machines_in_step_are_written_once_more_only_for_a_new_spec() -> None:
    assert acts(decided(plane(status={"observedGeneration": 1}), machine("a"))) == []
    (apply,) = acts(decided(plane(), machine("a")))
    assert isinstance(apply, Apply)


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ([cluster(), KUBECONFIG], "InMemoryMachineTemplate t does not exist"),
        ([cluster(deleting=True), KUBECONFIG, template()], "the Cluster is being deleted"),
    ],
)
def test_what_keeps_machines_from_being_made_is_told(others: list[Object], told: str) -> None:
    decision = decided(plane(), others=others)
    assert acts(decision) == []
    assert condition(patched(plane(), decision), "ScalingUp") == (
        "True",
        "ScalingUp",
        f"Scaling up from 0 to 1 replicas is blocked because:\n* {told}",
    )


def test_only_machines_of_its_own_kind_can_be_made() -> None:
    of = plane()
    of["spec"]["machineTemplate"]["spec"]["infrastructureRef"]["kind"] = "DockerMachineTemplate"
    decision = decided(of)
    assert acts(decision) == []
    assert "infrastructureRef: DockerMachineTemplate is not" in condition(patched(of, decision), "ScalingUp")[2]


def test_the_template_goes_with_the_cluster() -> None:
    owned = acts(decided(plane(), others=[cluster(), KUBECONFIG, template(owned=False)]))[0]
    assert owned.ref.kind == IN_MEMORY_MACHINE_TEMPLATE
    assert owned.patch["metadata"]["ownerReferences"][0]["kind"] == "Cluster"


# --- what it tells ----------------------------------------------------------------------------------------------


def told(of: Object, *machines: Object, **more: Any) -> Object:
    return patched(of, decided(of, *machines, **more))


def test_it_is_initialized_when_its_first_machine_has_a_node() -> None:
    before = told(plane(), machine("a", ready=False))
    assert before["status"]["initialized"] is False
    assert condition(before, "Available") == ("False", "NotAvailable", "Control plane not yet initialized")
    after = told(plane(), machine("a"))
    assert after["status"]["initialization"] == {"controlPlaneInitialized": True}
    assert after["status"]["initialized"] is True
    assert after["status"]["ready"] is True
    assert condition(after, "Available") == ("True", "Available", "")
    assert condition(after, "Initialized")[0] == "True"
    assert legacy(after, "Ready")["status"] == legacy(after, "Available")["status"] == "True"


def test_once_initialized_it_stays_so() -> None:
    status = {"initialization": {"controlPlaneInitialized": True}}
    lost = told(plane(status=status), machine("a", ready=False))
    assert lost["status"]["initialization"] == {"controlPlaneInitialized": True}
    assert condition(lost, "Available") == ("False", "NotAvailable", "No Machine of the control plane is ready")


def test_counters_versions_and_selector() -> None:
    of = plane(replicas=3, version="v1.36.0")
    status = told(of, machine("a"), machine("b", version="v1.36.0"), machine("d", ready=False, version="v1.36.0"))[
        "status"
    ]
    wanted = {
        "replicas": 3,
        "readyReplicas": 2,
        "availableReplicas": 2,
        "upToDateReplicas": 2,
        "updatedReplicas": 2,
        "unavailableReplicas": 1,
        "version": "v1.35.0",
        "versions": [{"version": "v1.35.0", "replicas": 1}, {"version": "v1.36.0", "replicas": 2}],
        "selector": "cluster.x-k8s.io/cluster-name=c,cluster.x-k8s.io/control-plane",
        "observedGeneration": 1,
    }
    assert {name: status[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("of", "machines", "type_", "said"),
    [
        (plane(), [], "ScalingUp", ("True", "ScalingUp", "Scaling up from 0 to 1 replicas")),
        (plane(), [machine("a")], "ScalingUp", ("False", "NotScalingUp", "")),
        (
            plane(),
            [machine("a"), machine("b")],
            "ScalingDown",
            ("True", "ScalingDown", "Scaling down from 2 to 1 replicas"),
        ),
        (plane(), [machine("a")], "ScalingDown", ("False", "NotScalingDown", "")),
        (plane(), [machine("a")], "RollingOut", ("False", "NotRollingOut", "")),
        (
            plane(version="v1.36.0"),
            [machine("a")],
            "RollingOut",
            ("True", "RollingOut", "Rolling out 1 not up-to-date replicas\n* Version v1.35.0, v1.36.0 required"),
        ),
        (plane(), [], "MachinesReady", ("True", "NoReplicas", "")),
        (plane(), [machine("a")], "MachinesReady", ("True", "Ready", "")),
        (
            plane(),
            [machine("a", ready=False)],
            "MachinesReady",
            ("False", "NotReady", "* Machine a: it starts"),
        ),
        (plane(), [machine("a")], "MachinesUpToDate", ("True", "UpToDate", "")),
        (plane(), [machine("a")], "Remediating", ("False", "NotRemediating", "")),
        (plane(), [machine("a")], "Deleting", ("False", "NotDeleting", "")),
        (plane(), [machine("a")], "Paused", ("False", "NotPaused", "")),
    ],
)
def test_conditions(of: Object, machines: list[Object], type_: str, said: tuple[str, str, str]) -> None:
    assert condition(told(of, *machines), type_) == said


def test_progress_may_wait_for_more_news_and_what_users_wait_for_may_not() -> None:
    def debounce(decision: Decision) -> float:
        return next(
            w for w in flat(decision) if isinstance(w, Patch) and w.ref.kind == IN_MEMORY_CONTROL_PLANE
        ).debounce

    assert debounce(decided(plane(), machine("a"))) == 0
    settled = told(plane(), machine("a"))
    assert debounce(decided(settled, machine("a"), machine("b", ready=False))) > 0


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [(names.FAIL, "NoLicence", "NoLicence"), (names.NEVER_READY, "true", "NeverReady")],
)
def test_trouble_that_is_asked_for_is_told(annotation: str, value: str, reason: str) -> None:
    of = plane(annotations={annotation: value})
    decision = decided(of)
    assert acts(decision) == []
    assert condition(patched(of, decision), "Available")[:2] == ("False", reason)


def test_nonsense_on_a_control_plane_that_works_is_told_and_changes_nothing() -> None:
    of = plane(annotations={names.NEVER_READY: "perhaps"}, status={"initialization": {"controlPlaneInitialized": True}})
    status, reason, message = condition(told(of, machine("a")), "Available")
    assert (status, reason) == ("True", "Available")
    assert names.NEVER_READY in message


# --- the end ----------------------------------------------------------------------------------------------------


def test_machines_go_first() -> None:
    of = plane(deleting=True)
    decision = decided(of, machine("a"), machine("b"))
    assert [w.ref.name for w in acts(decision)] == ["a", "b"]
    assert condition(patched(of, decision), "Deleting") == (
        "True",
        "WaitingForMachineDeletion",
        "Remaining Machines: a, b",
    )
    (released,) = flat(decided(of))
    assert isinstance(released, Patch)
    assert released.patch == {"metadata": {"finalizers": []}}


def test_it_stays_for_as_long_as_its_annotation_says() -> None:
    assert flat(decided(plane(deleting=True, annotations={names.STUCK_DELETION: "true"}))) == []


def test_nothing_happens_before_the_core_has_made_it_a_clusters() -> None:
    assert flat(decided(plane(owner=None, finalizers=None))) == []


def test_the_finalizer_comes_first() -> None:
    (added,) = flat(decided(plane(finalizers=None)))
    assert isinstance(added, Patch)
    assert added.patch == {"metadata": {"finalizers": [names.CONTROL_PLANE_FINALIZER]}}


def test_while_paused_it_says_so_and_does_nothing() -> None:
    of = plane(annotations={PAUSED: ""})
    decision = decided(of)
    assert acts(decision) == []
    assert condition(patched(of, decision), "Paused")[0] == "True"
