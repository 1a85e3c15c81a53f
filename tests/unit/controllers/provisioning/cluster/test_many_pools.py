"""One reconcile of a cluster with many machine pools: its work grows with their number, and not with its square."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from herder.api.references import approvals
from herder.api.references.approvals import APPROVED, Approval, with_record
from herder.api.references.catalogue import pool_path
from herder.api.rke import cluster_spec
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.names import CLUSTER_SPEC
from herder.controllers.provisioning.cluster import templates
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Decision
from tests.support.builders import new_object, writes_of
from tests.unit.controllers.provisioning.cluster.test_generation import decide
from tests.unit.controllers.provisioning.objects import KINDS, WITH_SCHEMA, WORKSPACE, config, pool, stored_cluster


def cluster_of(count: int) -> list[Object]:
    """A cluster whose pools have configs of their own, with the record of its references, and these configs."""
    names = [f"p{number}" for number in range(count)]
    made = stored_cluster(*(pool(name, config=name, **WITH_SCHEMA) for name in names))
    kind = KINDS.config
    record = [
        Approval(f"{pool_path(name)}.machineConfigRef", kind.plural, name, kind.group, WORKSPACE, author="alice")
        for name in names
    ]
    return [with_record(made, record), *(config(name, image="debian") for name in names)]


def generated(decision: Decision) -> int:
    return sum(isinstance(write, Apply) and write.kind == KINDS.template for write in writes_of(decision))


def calls(count: int) -> int:
    """Function calls of one reconcile."""
    objects, counted = cluster_of(count), 0

    def count_calls(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    decide(*objects)  # imports, and caches of schemas
    sys.setprofile(count_calls)
    try:
        decision = decide(*objects)
    finally:
        sys.setprofile(None)
    assert generated(decision) == count
    return counted


def test_work_grows_linearly_with_the_number_of_pools() -> None:
    first, second, third = calls(100), calls(200), calls(400)
    assert third - second <= 2.2 * (second - first)


def test_the_record_of_references_and_the_schema_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = {"records": 0, "schemas": 0}
    decode, fields_in = approvals._decode, templates._fields_in

    def counted_decode(text: str) -> Any:
        read["records"] += 1
        return decode(text)

    def counted_fields(text: str) -> Any:
        read["schemas"] += 1
        return fields_in(text)

    monkeypatch.setattr(approvals, "_decode", counted_decode)
    monkeypatch.setattr(templates, "_fields_in", counted_fields)
    for memo in (approvals._records, templates._schemas):
        memo._results.clear()  # type: ignore[attr-defined]
    assert generated(decide(*cluster_of(100))) == 100
    assert read["records"] <= 2  # that of the cluster, and one that is derived from it
    assert read["schemas"] == 1


def test_few_records_are_kept() -> None:
    """Each may be as large as an object."""
    for number in range(100):
        record = {APPROVED: f'[{{"path":"p","resource":"secrets","name":"n{number}"}}]'}
        assert approvals.recorded(new_object(KINDS.config, "c", annotations=record))
    assert len(approvals._records._results) <= 16


def test_an_unchanged_spec_is_not_compressed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[bytes] = []
    pack = cluster_spec._packed

    def counted_pack(content: bytes) -> str:
        packed.append(content)
        return pack(content)

    monkeypatch.setattr(cluster_spec, "_packed", counted_pack)
    cluster, *configs = cluster_of(3)
    plane = plane_in(decide(cluster, *configs))
    assert len(packed) == 1
    again = plane_in(decide(cluster, *configs, plane))
    assert len(packed) == 1
    assert again["metadata"]["annotations"] == plane["metadata"]["annotations"]
    cluster["spec"]["kubernetesVersion"] = "v1.34.2+k3s1"
    changed = plane_in(decide(cluster, *configs, plane))
    assert len(packed) == 2
    assert (
        cluster_spec.decode_spec(changed["metadata"]["annotations"][CLUSTER_SPEC])["kubernetesVersion"]
        == "v1.34.2+k3s1"
    )


def plane_in(decision: Decision) -> Object:
    (plane,) = (write.obj for write in writes_of(decision) if isinstance(write, Apply) and write.kind == CONTROL_PLANE)
    return plane
