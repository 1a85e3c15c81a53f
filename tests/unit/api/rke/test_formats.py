"""Names, hashes and texts of provisioned clusters that other programs read too. The vectors are upstream's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from herder.api import gojson
from herder.api.capi.kinds import MACHINE
from herder.api.go_durations import whole_seconds
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import log
from herder.api.rke.cluster_spec import decode_spec, encode_spec
from herder.api.rke.hashes import bootstrap_template_hash, machine_template_hash
from herder.api.rke.machines.removal import machine_removal_condition
from herder.api.rke.sets import hash_of, owning_cluster, set_hash, with_set_labels
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from tests.support.builders import new_object

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CONFIG = {"image": "rancher/systemd-node:v0.0.8", "userdata": "#cloud-config\n"}


def test_a_template_has_the_same_hash_as_upstream() -> None:
    assert machine_template_hash("demo-pool1", CONFIG) == "e9fba347"


@pytest.mark.parametrize("ignored", [{"common": {"labels": {"a": "b"}}}, {"disk": None}, {"disk": ""}, {"disks": []}])
def test_common_and_empty_fields_do_not_change_the_template_hash(ignored: Object) -> None:
    assert machine_template_hash("demo-pool1", CONFIG | ignored) == "e9fba347"


@pytest.mark.parametrize("other", [{"disk": "8"}, {"disk": False}, {"disk": 0}, {"disk": {}}])
def test_other_fields_change_the_template_hash(other: Object) -> None:
    assert machine_template_hash("demo-pool1", CONFIG | other) != "e9fba347"
    assert machine_template_hash("demo-pool2", CONFIG) != "e9fba347"


def test_user_data_changes_the_bootstrap_template_hash() -> None:
    assert bootstrap_template_hash("demo-pool1", "") == "b47c9422"
    assert bootstrap_template_hash("demo-pool1", "#cloud-config") != bootstrap_template_hash("demo-pool1", "")


def test_json_is_serialized_as_go_does() -> None:
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


def test_an_encoded_spec_is_stable_and_omits_operations() -> None:
    spec: Object = {"kubernetesVersion": "v1", "rkeConfig": {"etcdSnapshotCreate": {"generation": 1}, "x": "<y>"}}
    assert encode_spec(spec) == encode_spec({**spec, "rkeConfig": {"x": "<y>", "rotateCertificates": {}}})
    assert decode_spec(encode_spec(spec)) == {"kubernetesVersion": "v1", "rkeConfig": {"x": "<y>"}}


@pytest.mark.parametrize("text", ["", "!", "aGk=", "H4sIAAAAAAAAAw=="])
def test_an_invalid_encoded_spec_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="invalid cluster spec"):
        decode_spec(text)


def test_set_labels_lead_back_to_the_owning_cluster() -> None:
    obj = with_set_labels({"metadata": {"name": "x", "labels": {"a": "b"}}}, "fleet-default", "meadow")
    assert [*owning_cluster(obj)] == [Key("fleet-default", "meadow")]
    assert [*hash_of(obj)] == [set_hash("fleet-default", "meadow")] == ["53908d6f8512a97752b90f2e1053005e199c9dad"]
    assert obj["metadata"]["labels"]["a"] == "b"
    assert [*owning_cluster({"metadata": {}})] == []


# --- the log --------------------------------------------------------------------------------------------------------


def condition(type_: str, status: str, message: str = "") -> Object:
    return {"type": type_, "status": status, "message": message}


def cluster(*conditions: Object, ready: bool = False, **meta: Any) -> Object:
    status = {"ready": ready, "conditions": [*conditions]}
    return new_object(PROVISIONING_CLUSTER, "meadow", metadata=meta, status=status)


MESSAGES: dict[str, tuple[Object, tuple[str, bool]]] = {
    "nothing yet": (cluster(), ("", False)),
    "waiting": (cluster(condition("Provisioned", "Unknown", "waiting")), ("waiting", False)),
    "failed": (cluster(condition("Provisioned", "False", "no disk")), ("no disk", True)),
    "an update of a provisioned cluster": (
        cluster(condition("Provisioned", "True"), condition("Updated", "Unknown", "upgrading")),
        ("upgrading", False),
    ),
    "done, but not ready": (cluster(condition("Provisioned", "True"), condition("Updated", "True")), ("", False)),
    "done": (
        cluster(condition("Provisioned", "True"), condition("Updated", "True"), ready=True),
        ("provisioning done", False),
    ),
    "a conflict": (
        cluster(condition("Provisioned", "False", f"x: {log._CONFLICT}")),
        (f"Transient error encountered: x: {log._CONFLICT}", True),
    ),
    "deleting": (
        cluster(
            condition("Provisioned", "True"), condition("Removed", "Unknown", "machine [a]"), deletionTimestamp="t"
        ),
        ("machine [a]", False),
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_the_current_message_of_a_cluster(case: str) -> None:
    obj, expected = MESSAGES[case]
    assert log.current_message(obj) == expected


def test_new_lines_replace_the_oldest_in_a_full_log() -> None:
    text = log.append_entry("", "first", False, NOW)
    text = log.append_entry(text.rstrip("\n"), "second", True, NOW)
    assert text == "2026-01-01T12:00:00Z [INFO ] first\n2026-01-01T12:00:00Z [ERROR] second\n"
    for number in range(400):
        text = log.append_entry(text, f"line {number}", False, NOW)
    assert len(text.encode()) <= log.MAX_LOG_BYTES
    assert "first" not in text
    assert text.endswith("line 399\n")
    assert text.startswith("2026-01-01T12:00:00Z ")


def test_a_single_line_is_never_truncated() -> None:
    assert log.append_entry("old\n", "x" * 20_000, False, NOW).count("\n") == 1


# --- removal --------------------------------------------------------------------------------------------------------


def machine(name: str, *conditions: Object) -> Object:
    return new_object(MACHINE, name, status={"conditions": [*conditions]})


def test_the_removed_condition_names_the_first_machine() -> None:
    removed = machine_removal_condition([machine("b"), machine("a")])
    assert removed == {
        "type": "Removed",
        "status": "Unknown",
        "reason": "Waiting",
        "message": "waiting for machine [a] to delete",
    }
    assert machine_removal_condition([]) is None


def test_a_failed_machine_deletion_is_an_error() -> None:
    stuck = machine("a", condition("Deleting", "True") | {"reason": "InternalError"})
    removed = machine_removal_condition([stuck]) or {}
    assert (removed["status"], removed["reason"]) == ("False", "Error")
    assert removed["message"] == "error deleting machine [a], machine must be deleted manually"
