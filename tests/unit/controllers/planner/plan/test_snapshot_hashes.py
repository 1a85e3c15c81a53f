"""Hashes of snapshots that K3s and RKE2 take by schedule: from the report of a server to the ETCDSnapshot."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.rke import names
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.node.plan import CERTIFICATE_EXPIRY, SNAPSHOT_HASHES, Plan, checksum
from herder.api.rke.node.plan_secret import PeriodicOutput, PlanSecret, encoded, zipped
from herder.controllers.planner.distributions.certificate_report import rancher_expiry
from herder.controllers.planner.distributions.interface import Roles
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.controllers.planner.distributions.rancher.snapshots import hash_instruction
from herder.controllers.planner.distributions.tasks import CheckSnapshot, RotateCertificates, SnapshotFile
from herder.controllers.planner.plan.secret import CONTROLLER
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch
from tests.support.builders import new_object, owner_reference, patches_of, reconcile
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.distributions import inputs, test_embedded
from tests.unit.controllers.planner.objects import NAMESPACE, plan_of
from tests.unit.controllers.planner.rollout.test_tiers import planned_machines, roll_out_machines, worker

FILE, HASH, OTHER = "etcd-snapshot-a-1", "a" * 64, "b" * 64
PLAN = msgspec.structs.replace(plan_of(), periodic_instructions=(hash_instruction("/data"),))
LINE = f"snapshot {HASH} {FILE}\n"


def reporting(stdout: str, *, machine: str = "a", plan: Plan = PLAN) -> Object:
    secret = objects.plan_secret(machine, plan=plan)
    output = PeriodicOutput(SNAPSHOT_HASHES, stdout.encode())
    secret["data"]["applied-periodic-output"] = encoded(zipped({SNAPSHOT_HASHES: msgspec.to_builtins(output)}))
    return secret


def listed(
    name: str = "s1", *, file: str = FILE, machine: str = "a", in_s3: bool = False, sha256: str = "", **options: Any
) -> Object:
    owner = owner_reference(CLUSTER, "demo") if in_s3 else owner_reference(MACHINE, machine, controller=False)
    annotations = {names.SNAPSHOT_SHA256: sha256} if sha256 else {}
    fields: dict[str, Any] = {
        "spec": {"clusterName": "demo"},
        "snapshotFile": {"name": file, "nodeName": "s3" if in_s3 else machine},
    }
    metadata = {"resourceVersion": "7"}
    return new_object(
        ETCD_SNAPSHOT, name, NAMESPACE, owners=[owner], annotations=annotations, metadata=metadata, **fields, **options
    )


def patched(secret: Object, *snapshots: Object) -> list[Patch]:
    context = (objects.cluster(), objects.control_plane(), objects.beacon(), objects.machine("a"))
    decision = reconcile(CONTROLLER, f"{NAMESPACE}/{secret['metadata']['name']}", secret, *context, *snapshots)
    return patches_of(decision, ETCD_SNAPSHOT)


def recorded(secret: Object, *snapshots: Object) -> dict[str, str]:
    """Hashes that are written, by the name of the ETCDSnapshot."""
    return {
        each.ref.name: each.patch["metadata"]["annotations"][names.SNAPSHOT_SHA256]
        for each in patched(secret, *snapshots)
    }


# --- the record -------------------------------------------------------------------------------------------------------


def test_the_hash_of_a_scheduled_snapshot_is_recorded_once() -> None:
    assert recorded(reporting(LINE), listed()) == {"s1": HASH}
    assert recorded(reporting(LINE), listed(sha256=HASH)) == {}
    assert recorded(reporting(LINE)) == {}, "its ETCDSnapshot does not exist yet"
    assert recorded(reporting(""), listed()) == {}


def test_a_recorded_hash_is_never_replaced() -> None:
    """The file was changed, or its server lies. A write that another one precedes fails."""
    assert recorded(reporting(LINE), listed(sha256=OTHER)) == {}
    (patch,) = patched(reporting(LINE), listed())
    assert patch.resource_version == "7"


def test_a_server_reports_only_its_own_files() -> None:
    others = (
        listed("other-machine", machine="b"),
        listed("other-file", file="etcd-snapshot-a-2"),
        listed("in-s3", in_s3=True),
        listed("deleted", deleting=True, finalizers=["etcdsnapshot.herder.io/file"]),
    )
    assert recorded(reporting(LINE), *others, listed()) == {"s1": HASH}


def test_a_report_that_the_plan_does_not_request_is_ignored() -> None:
    assert recorded(reporting(LINE, plan=plan_of()), listed()) == {}


@pytest.mark.parametrize("line", [f"snapshot {HASH} ../{FILE}\n", f"snapshot {HASH[1:]} {FILE}\n", f"{HASH} {FILE}\n"])
def test_hostile_reports_are_ignored(line: str) -> None:
    assert recorded(reporting(line), listed()) == {}


def test_a_new_snapshot_wakes_the_plan_of_its_machine() -> None:
    (watch,) = [each for each in CONTROLLER.watches if each.kind == ETCD_SNAPSHOT]

    def plans_of(snapshot: Object) -> list[str]:
        values: list[str] = []

        def lookup(index: tuple[str, str]) -> tuple[Key, ...]:
            values.append(index[1])
            return ()

        watch.affected(Change(Key(NAMESPACE, "s1"), None, snapshot), lookup)
        return values

    assert plans_of(listed()) == [f"{NAMESPACE}/a"]
    assert plans_of(listed(in_s3=True)) == []


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v1.33.4+k3s1", "v1.33.4+rke2r1"])
@pytest.mark.parametrize(
    ("roles", "expected"), [(Roles(etcd=True), True), (Roles(control_plane=True), False), (Roles(worker=True), False)]
)
def test_servers_with_etcd_report_hashes(version: str, roles: Roles, expected: bool) -> None:
    machine = inputs.server(roles=roles, join_url="https://10.0.0.11:9345", is_init=False)
    plan = distribution_of(version).render(inputs.cluster(version), machine)
    assert plan.reports_snapshots is expected
    assert plan.reports_certificates


def test_the_directory_is_the_one_that_a_restore_reads() -> None:
    distribution, cluster = distribution_of(inputs.VERSION), inputs.cluster(dataDirectories={"k8sDistro": "/srv/rke2"})
    plan = distribution.render(cluster, inputs.server())
    task = CheckSnapshot("mark", SnapshotFile(FILE, in_s3=False, sha256=HASH))
    (check,) = distribution.task(cluster, inputs.server(), task).instructions
    (hashes,) = [each for each in plan.periodic_instructions if each.name == SNAPSHOT_HASHES]
    directory, known = hashes.args[3:5]
    assert (f"{directory}/{FILE}", HASH) == tuple(check.args[-2:])
    assert known.rpartition("/")[0] == directory.rpartition("/")[0], "K3s lists every file of the directory"


@pytest.mark.parametrize("version", ["v1.36.3+kubeadm1", "v1.36.3+herder1"])
def test_other_distributions_report_hashes_when_they_save(version: str) -> None:
    cluster = test_embedded.READY if "herder" in version else inputs.cluster(version)
    assert not distribution_of(version).task(cluster, inputs.server(), RotateCertificates("m")).reports_snapshots


def test_the_instruction_restarts_nothing() -> None:
    assert PLAN.disruptive_parts() == plan_of().disruptive_parts()
    assert PLAN.reports_snapshots
    assert not plan_of().reports_snapshots
    distribution = distribution_of(inputs.VERSION)
    plan = distribution.render(inputs.cluster(), inputs.server())
    assert distribution.drain_hash(plan) == distribution.drain_hash(plan.without_reports(SNAPSHOT_HASHES))


def with_reports(plan: Plan, *reports: str) -> Plan:
    found = {SNAPSHOT_HASHES: hash_instruction("/data"), CERTIFICATE_EXPIRY: rancher_expiry("/data")}
    return msgspec.structs.replace(plan, periodic_instructions=tuple(found[each] for each in reports))


@pytest.mark.parametrize("reports", [(), (CERTIFICATE_EXPIRY,), (CERTIFICATE_EXPIRY, SNAPSHOT_HASHES)])
def test_plans_of_older_managers_are_kept(reports: tuple[str, ...]) -> None:
    """They are recorded with their own checksum, and get the instruction with the next change."""
    known = with_reports(plan_of(stamp="2"), *reports)
    wanted = with_reports(plan_of(stamp="2"), CERTIFICATE_EXPIRY, SNAPSHOT_HASHES)
    kept = roll_out_machines(worker("a", known), new_plan=wanted)
    assert planned_machines(kept) == []
    (record,) = kept.records
    assert record.patch["metadata"]["annotations"][names.PLAN_INPUTS].endswith(checksum(known.to_json()))
    changed = with_reports(plan_of(stamp="3"), CERTIFICATE_EXPIRY, SNAPSHOT_HASHES)
    (write,) = roll_out_machines(worker("a", known), new_plan=changed).writes
    assert PlanSecret({"data": write.patch["data"], "metadata": {}}).plan == changed


def test_a_plan_without_another_instruction_is_replaced() -> None:
    other = with_reports(plan_of(stamp="2"), SNAPSHOT_HASHES)
    wanted = with_reports(plan_of(stamp="2"), CERTIFICATE_EXPIRY, SNAPSHOT_HASHES)
    assert planned_machines(roll_out_machines(worker("a", other), new_plan=wanted)) == ["a"]
