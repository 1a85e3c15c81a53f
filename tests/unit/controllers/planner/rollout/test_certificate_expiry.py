"""Expiry of certificates: from the report of a node to the condition of the control plane, its Events and a metric."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.rke import names
from herder.api.rke.node.certificates import (
    CERTIFICATES_VALID,
    NodeCertificate,
    certificates_of,
    to_annotation,
)
from herder.api.rke.node.plan import CERTIFICATE_EXPIRY, Plan, checksum
from herder.api.rke.node.plan_secret import PeriodicOutput, PlanSecret, encoded, zipped
from herder.app.metrics.certificates import EXPIRY, INDEX, MAX_MACHINES, _Collector, first_certificate
from herder.controllers.planner.controller import CONTROLLER as PLANNER
from herder.controllers.planner.distributions.certificate_report import rancher_expiry
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.controllers.planner.distributions.tasks import RotateCertificates
from herder.controllers.planner.distributions.tasks import combined as combined_plan
from herder.controllers.planner.plan.secret import CONTROLLER
from herder.engine.control.cache import Cache, Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision
from tests.support.builders import NOW, events_of, new_condition, patches_of, reconcile
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.distributions import inputs, test_embedded
from tests.unit.controllers.planner.objects import NAMESPACE, TOKENS, machine_with_plan, plan_of
from tests.unit.controllers.planner.rollout.test_tiers import planned_machines, roll_out_machines, worker
from tests.unit.controllers.planner.test_events import owned_cluster

LEAF, AUTHORITY = "/tls/client-admin.crt", "/tls/server-ca.crt"
PLAN = msgspec.structs.replace(plan_of(), periodic_instructions=(rancher_expiry("/data"),))
MONTH = timedelta(days=30)
RENEW = "renew the certificates with: herder rotate certificates demo"
ROTATE = "rotate the certificate authorities with: herder rotate certificates demo --ca"


def certificate(left: timedelta, path: str = LEAF) -> NodeCertificate:
    return NodeCertificate((NOW + left).strftime("%Y-%m-%dT%H:%M:%SZ"), path, "0A")


def time_of(left: timedelta) -> str:
    return certificate(left).not_after


# --- the report of a node ---------------------------------------------------------------------------------------------


def reporting(stdout: bytes, *, plan: Any = PLAN, exit_code: int = 0, **annotations: str) -> Object:
    secret = objects.plan_secret("a", plan=plan, annotations=annotations)
    output = PeriodicOutput(CERTIFICATE_EXPIRY, stdout, exit_code=exit_code)
    secret["data"]["applied-periodic-output"] = encoded(zipped({CERTIFICATE_EXPIRY: msgspec.to_builtins(output)}))
    return secret


def recorded(secret: Object, known: str | None = None) -> list[Any]:
    """What is written to the annotation of the Machine."""
    machine = objects.machine("a")
    machine["metadata"]["annotations"] = {names.CERTIFICATES: known} if known else {}
    context = (objects.cluster(), objects.control_plane(), objects.beacon())
    decision = reconcile(CONTROLLER, f"{NAMESPACE}/{secret['metadata']['name']}", secret, machine, *context)
    patches = [patch.patch for patch in patches_of(decision, MACHINE) if not patch.subresource]
    return [patch["metadata"]["annotations"][names.CERTIFICATES] for patch in patches]


def test_a_report_is_copied_to_the_machine_once() -> None:
    secret = reporting(f"certificate 0A 20260201120000Z {LEAF}\n".encode())
    (written,) = recorded(secret)
    machine = objects.machine("a")
    machine["metadata"]["annotations"] = {names.CERTIFICATES: written}
    assert certificates_of(machine) == (NodeCertificate("2026-02-01T12:00:00Z", LEAF, "0A"),)
    assert recorded(secret, known=written) == []
    assert recorded(secret, known="[]") == [written]
    partial = reporting(f"certificate 0A 20260201120000Z {LEAF}\n".encode(), exit_code=1)
    assert recorded(partial) == [written], "other certificates are still being created"


def test_failed_and_missing_reports_change_nothing() -> None:
    assert recorded(reporting(b"", exit_code=1), known="[7]") == []
    assert recorded(objects.plan_secret("a", plan=PLAN), known="[]") == []
    assert recorded(objects.plan_secret("a", plan=PLAN)) == []


def test_a_plan_without_the_instruction_withdraws_the_report() -> None:
    assert recorded(objects.plan_secret("a", plan=plan_of()), known="[]") == [None]
    assert recorded(objects.plan_secret("a", plan=plan_of())) == []
    task = {names.PLAN_TASK: "rotate"}
    assert recorded(objects.plan_secret("a", plan=plan_of(), annotations=task), known="[]") == []


@pytest.mark.parametrize("stdout", [b"\xff" * 4096, b"9" * 5000, b"certificate 0A -1 /a", b"\n" * 100_000])
def test_hostile_reports_are_empty(stdout: bytes) -> None:
    assert recorded(reporting(stdout)) == ["[]"]


def test_plans_with_and_without_the_instruction_do_not_differ_in_anything_disruptive() -> None:
    assert PLAN.disruptive_parts() == plan_of().disruptive_parts()
    assert PLAN.reports_certificates
    assert not plan_of().reports_certificates


def test_plans_of_an_older_manager_are_kept() -> None:
    """They are recorded with their own checksum, and get the instruction with the next change."""
    kept = roll_out_machines(worker("a", plan_of(stamp="2")), new_plan=reported(plan_of(stamp="2")))
    assert planned_machines(kept) == []
    (record,) = kept.records
    assert record.patch["metadata"]["annotations"][names.PLAN_INPUTS].endswith(checksum(plan_of(stamp="2").to_json()))
    (changed,) = roll_out_machines(worker("a", plan_of(stamp="2")), new_plan=reported(plan_of(stamp="3"))).writes
    assert PlanSecret({"data": changed.patch["data"], "metadata": {}}).plan == reported(plan_of(stamp="3"))
    current = roll_out_machines(worker("a", reported(plan_of(stamp="2"))), new_plan=reported(plan_of(stamp="2")))
    assert planned_machines(current) == []


@pytest.mark.parametrize("version", ["v1.33.4+k3s1", "v1.33.4+rke2r1", "v1.36.3+kubeadm1", "v1.36.3+herder1"])
def test_a_rotation_adds_the_instruction(version: str) -> None:
    """Machines of an older manager get it; on other machines it stays the same."""
    distribution = distribution_of(version)
    cluster = test_embedded.READY if "herder" in version else inputs.cluster(version)
    task = distribution.task(cluster, inputs.server(), RotateCertificates("m"))
    (instruction,) = task.periodic_instructions
    assert instruction.name == CERTIFICATE_EXPIRY
    for current in (plan_of(), msgspec.structs.replace(plan_of(), periodic_instructions=(instruction,))):
        combined = combined_plan(current, task, RotateCertificates.mode)
        assert combined.periodic_instructions == (instruction,)
        assert combined.instructions == (*current.instructions, *task.instructions)


def reported(plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, periodic_instructions=(rancher_expiry("/data"),))


# --- the condition of the control plane -------------------------------------------------------------------------------


def plan_with(
    *machines: tuple[str, tuple[NodeCertificate, ...]],
    known: Object | None = None,
    now: datetime = NOW,
    version: str = "v1.33.4+k3s1",
) -> Decision:
    existing: list[Object] = []
    for name, certificates in machines:
        machine, secret = machine_with_plan(name, plan=plan_of())
        machine["metadata"]["annotations"] = {names.CERTIFICATES: to_annotation(certificates)}
        existing += [machine, secret]
    status = {"conditions": [known] if known else []}
    cluster = owned_cluster()
    cluster["spec"]["paused"] = True  # the report does not depend on the rollout
    context = (cluster, objects.control_plane(status=status, kubernetesVersion=version), objects.beacon(), TOKENS)
    return reconcile(PLANNER, f"{NAMESPACE}/demo", *context, *existing, now=now)


def condition_of(decision: Decision) -> tuple[str, str, str] | None:
    for patch in patches_of(decision, objects.CONTROL_PLANE):
        for each in (patch.patch.get("status") or {}).get("conditions") or ():
            if each["type"] == CERTIFICATES_VALID:
                return each["status"], each["reason"], each["message"]
    return None


CASES: dict[str, tuple[list[NodeCertificate], tuple[str, str, str]]] = {
    "far": ([certificate(MONTH + timedelta(seconds=1))], ("True", "", "")),
    "month": (
        [certificate(MONTH), certificate(timedelta(days=300), AUTHORITY)],
        (
            "False",
            "CertificatesExpiring",
            f"certificate {LEAF} of machine a expires at {time_of(MONTH)}; {RENEW}",
        ),
    ),
    "expired": (
        [certificate(timedelta(0)), certificate(MONTH, "/tls/later.crt")],
        ("False", "CertificateExpired", f"certificate {LEAF} of machine a expired at {time_of(timedelta(0))}; {RENEW}"),
    ),
    "authority": (
        [certificate(MONTH, AUTHORITY)],
        (
            "False",
            "CertificatesExpiring",
            f"certificate authority {AUTHORITY} of machine a expires at {time_of(MONTH)}; {ROTATE}",
        ),
    ),
    "both": (
        [certificate(MONTH), certificate(timedelta(days=-1), AUTHORITY)],
        (
            "False",
            "CertificateExpired",
            f"certificate {LEAF} of machine a expires at {time_of(MONTH)}; {RENEW}; certificate authority {AUTHORITY} "
            f"of machine a expired at {time_of(timedelta(days=-1))}; {ROTATE}",
        ),
    ),
}


@pytest.mark.parametrize(("certificates", "expected"), CASES.values(), ids=CASES)
def test_the_condition(certificates: list[NodeCertificate], expected: tuple[str, str, str]) -> None:
    decision = plan_with(("a", tuple(sorted(certificates))))
    assert condition_of(decision) == expected


@pytest.mark.parametrize("version", ["v1.33.4+kubeadm1", "v1.33.4+herder1"])
def test_authorities_that_cannot_be_rotated_need_a_new_cluster(version: str) -> None:
    found = condition_of(plan_with(("a", (certificate(MONTH, AUTHORITY),)), version=version))
    assert found is not None
    assert found[2].endswith(": move workloads to a new cluster")
    assert "--ca" not in found[2]


def test_the_first_of_many_machines_is_named() -> None:
    soon, later = certificate(timedelta(days=3)), certificate(timedelta(days=4))
    decision = plan_with(("a", (later,)), ("b", (soon,)), ("c", (later,)), ("d", (certificate(timedelta(days=90)),)))
    found = condition_of(decision)
    assert found is not None
    assert found[2].startswith(
        f"certificate {LEAF} of machine b expires at {soon.not_after} (2 more machines with such"
    )


def test_clusters_without_reports_have_no_condition() -> None:
    assert condition_of(plan_with()) is None
    assert condition_of(plan_with(("a", ()))) is None
    known = new_condition(CERTIFICATES_VALID, "False", "CertificatesExpiring")
    assert condition_of(plan_with(("a", ()), known=known)) == (
        "Unknown",
        "NotReported",
        "no machine reports its certificates",
    )


def test_the_planner_wakes_when_the_condition_changes() -> None:
    left = timedelta(days=100)
    expires = certificate(left).expires
    assert plan_with(("a", (certificate(left),))).wake_at == expires - MONTH
    assert plan_with(("a", (certificate(left),)), now=expires - MONTH).wake_at == expires
    assert plan_with(("a", (certificate(left),)), now=expires).wake_at is None


def test_events_are_recorded_when_the_reason_changes() -> None:
    soon = ("a", (certificate(timedelta(days=3)),))
    found = [each for each in events_of(plan_with(soon)) if "CertificatesExpiring" in each]
    message = f"certificate {LEAF} of machine a expires at {time_of(timedelta(days=3))}; {RENEW}"
    assert found == [
        f"Warning CertificatesExpiring {about}: {message}" for about in ("RKEControlPlane demo", "Cluster demo")
    ]
    known = new_condition(CERTIFICATES_VALID, "False", "CertificatesExpiring")
    assert not [each for each in events_of(plan_with(soon, known=known)) if "Certificate" in each]
    gone = ("a", (certificate(timedelta(0)),))
    assert any("CertificateExpired" in each for each in events_of(plan_with(gone, known=known)))


def test_a_report_wakes_the_planner() -> None:
    machine = objects.machine("a")
    reported = {**machine, "metadata": {**machine["metadata"], "annotations": {names.CERTIFICATES: "[]"}}}
    watches = [watch for watch in PLANNER.watches if watch.kind == MACHINE]
    key = Key(NAMESPACE, "a")
    assert any(watch.predicate(Change(key, machine, reported)) for watch in watches if watch.predicate)
    assert not any(watch.predicate(Change(key, reported, reported)) for watch in watches if watch.predicate)


# --- the metric -------------------------------------------------------------------------------------------------------


def samples(cache: Cache) -> list[tuple[dict[str, str], float]]:
    (family,) = _Collector(cache).collect()
    assert family.name == EXPIRY.name
    return [(each.labels, each.value) for each in family.samples]


def test_the_metric_has_the_first_certificate_of_each_machine() -> None:
    cache = Cache(MACHINE, {INDEX: first_certificate})
    for number in range(MAX_MACHINES + 5):
        found = (certificate(timedelta(days=number)), certificate(timedelta(days=900), AUTHORITY))
        machine = objects.machine(f"m{number:03}")
        meta = {**machine["metadata"], "annotations": {names.CERTIFICATES: to_annotation(found)}}
        cache.upsert({**machine, "metadata": {**meta, "resourceVersion": "1", "uid": f"{number}"}})
    found_samples = samples(cache)
    assert len(found_samples) == MAX_MACHINES
    labels = {"namespace": NAMESPACE, "cluster": "demo", "machine": "m000", "certificate": LEAF}
    assert found_samples[0] == (labels, NOW.timestamp())
    for key in [Key(NAMESPACE, labels["machine"]) for labels, _ in found_samples]:
        obj = cache.get(key)
        assert obj is not None
        cache.remove({**obj, "metadata": {**obj["metadata"], "resourceVersion": "2"}})
    assert [labels["machine"] for labels, _ in samples(cache)] == [f"m{100 + number}" for number in range(5)]
