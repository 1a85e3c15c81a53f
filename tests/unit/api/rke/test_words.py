"""Names, hashes and texts of provisioned clusters that others read too: the vectors are upstream's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from herder.api import gojson
from herder.api.rke import log
from herder.api.rke.cluster_spec import decode_spec, encode_spec
from herder.api.rke.durations import whole_seconds
from herder.api.rke.hashes import bootstrap_template_hash, machine_template_hash
from herder.api.rke.removal import machine_removal_condition
from herder.api.rke.sets import hash_of, owning_cluster, set_hash, with_set_labels
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CONFIG = {"image": "rancher/systemd-node:v0.0.8", "userdata": "#cloud-config\n"}


def test_a_template_is_hashed_as_upstream_hashes_it() -> None:
    assert machine_template_hash("demo-pool1", CONFIG) == "e9fba347"


@pytest.mark.parametrize("same", [{"common": {"labels": {"a": "b"}}}, {"disk": None}, {"disk": ""}, {"disks": []}])
def test_what_machines_have_in_common_and_what_is_empty_makes_no_other_template(same: Object) -> None:
    assert machine_template_hash("demo-pool1", CONFIG | same) == "e9fba347"


@pytest.mark.parametrize("other", [{"disk": "8"}, {"disk": False}, {"disk": 0}, {"disk": {}}])
def test_everything_else_does(other: Object) -> None:
    assert machine_template_hash("demo-pool1", CONFIG | other) != "e9fba347"
    assert machine_template_hash("demo-pool2", CONFIG) != "e9fba347"


def test_userdata_makes_another_bootstrap_template() -> None:
    assert bootstrap_template_hash("demo-pool1", "") == "b47c9422"
    assert bootstrap_template_hash("demo-pool1", "#cloud-config") != bootstrap_template_hash("demo-pool1", "")


def test_json_is_written_as_go_writes_it() -> None:
    assert gojson.marshal({"b": "<&>\u2028\u2029é", "a": [1, True, None]}) == (
        '{"a":[1,true,null],"b":"\\u003c\\u0026\\u003e\\u2028\\u2029é"}'.encode()
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("90s", 90),
        ("10m0s", 600),
        ("1h30m", 5400),
        ("1500ms", 1),
        (".5h", 1800),
        ("999999h", 2**31 - 1),
    ],
)
def test_durations_are_counted_in_whole_seconds(text: str, seconds: int) -> None:
    assert whole_seconds(text) == seconds


def test_a_spec_is_packed_without_operations_and_always_the_same() -> None:
    spec: Object = {"kubernetesVersion": "v1", "rkeConfig": {"etcdSnapshotCreate": {"generation": 1}, "x": "<y>"}}
    assert encode_spec(spec) == encode_spec({**spec, "rkeConfig": {"x": "<y>", "rotateCertificates": {}}})
    assert decode_spec(encode_spec(spec)) == {"kubernetesVersion": "v1", "rkeConfig": {"x": "<y>"}}


@pytest.mark.parametrize("text", ["", "!", "aGk=", "H4sIAAAAAAAAAw=="])
def test_what_is_no_packed_spec_is_a_clear_error(text: str) -> None:
    with pytest.raises(ValueError, match="invalid cluster spec"):
        decode_spec(text)


def test_what_was_made_from_a_cluster_leads_back_to_it() -> None:
    obj = with_set_labels({"metadata": {"name": "x", "labels": {"a": "b"}}}, "fleet-default", "meadow")
    assert [*owning_cluster(obj)] == [Key("fleet-default", "meadow")]
    assert [*hash_of(obj)] == [set_hash("fleet-default", "meadow")] == ["53908d6f8512a97752b90f2e1053005e199c9dad"]
    assert obj["metadata"]["labels"]["a"] == "b"
    assert [*owning_cluster({"metadata": {}})] == []


# --- the log --------------------------------------------------------------------------------------------------------


def condition(type_: str, status: str, message: str = "") -> Object:
    return {"type": type_, "status": status, "message": message}


def cluster(*conditions: Object, ready: bool = False, **meta: Any) -> Object:
    return {"metadata": {"name": "meadow", **meta}, "status": {"ready": ready, "conditions": [*conditions]}}


NEWS: dict[str, tuple[Object, tuple[str, bool]]] = {
    "nothing yet": (cluster(), ("", False)),
    "what is waited for": (cluster(condition("Provisioned", "Unknown", "waiting")), ("waiting", False)),
    "what failed": (cluster(condition("Provisioned", "False", "no disk")), ("no disk", True)),
    "an update of what is provisioned": (
        cluster(condition("Provisioned", "True"), condition("Updated", "Unknown", "upgrading")),
        ("upgrading", False),
    ),
    "done, but never reached": (cluster(condition("Provisioned", "True"), condition("Updated", "True")), ("", False)),
    "done": (
        cluster(condition("Provisioned", "True"), condition("Updated", "True"), ready=True),
        ("provisioning done", False),
    ),
    "a conflict": (
        cluster(condition("Provisioned", "False", f"x: {log._CONFLICT}")),
        (f"Transient error encountered: x: {log._CONFLICT}", True),
    ),
    "what keeps it from going": (
        cluster(
            condition("Provisioned", "True"), condition("Removed", "Unknown", "machine [a]"), deletionTimestamp="t"
        ),
        ("machine [a]", False),
    ),
}


@pytest.mark.parametrize("case", NEWS)
def test_what_is_told_of_a_cluster(case: str) -> None:
    found, told = NEWS[case]
    assert log.current_message(found) == told


def test_lines_are_added_and_the_oldest_make_room() -> None:
    text = log.append_entry("", "first", False, NOW)
    text = log.append_entry(text.rstrip("\n"), "second", True, NOW)
    assert text == "2026-01-01T12:00:00Z [INFO ] first\n2026-01-01T12:00:00Z [ERROR] second\n"
    for number in range(400):
        text = log.append_entry(text, f"line {number}", False, NOW)
    assert len(text.encode()) <= log.MAX_LOG_BYTES
    assert "first" not in text
    assert text.endswith("line 399\n")
    assert text.startswith("2026-01-01T12:00:00Z ")


def test_one_line_that_is_too_long_stays_whole() -> None:
    assert log.append_entry("old\n", "x" * 20_000, False, NOW).count("\n") == 1


# --- removal --------------------------------------------------------------------------------------------------------


def machine(name: str, *conditions: Object) -> Object:
    return {"metadata": {"name": name}, "status": {"conditions": [*conditions]}}


def test_the_first_machine_by_name_is_the_one_that_is_waited_for() -> None:
    leaving = machine_removal_condition([machine("b"), machine("a")])
    assert leaving == {
        "type": "Removed",
        "status": "Unknown",
        "reason": "Waiting",
        "message": "waiting for machine [a] to delete",
    }
    assert machine_removal_condition([]) is None


def test_a_machine_that_cannot_go_is_an_error() -> None:
    stuck = machine("a", condition("Deleting", "True") | {"reason": "InternalError"})
    leaving = machine_removal_condition([stuck]) or {}
    assert (leaving["status"], leaving["reason"]) == ("False", "Error")
    assert leaving["message"] == "error deleting machine [a], machine must be deleted manually"
