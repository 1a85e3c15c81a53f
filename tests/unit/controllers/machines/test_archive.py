"""Logs of deleted machines."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.kinds import DEFINITION
from herder.api.machines import archive as archived
from herder.api.machines import names
from herder.api.machines.kinds import kinds_of
from herder.api.settings import Settings
from herder.controllers.machines.archive import CONTROLLER, DELETED_SINCE
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Delete, Patch
from tests.support.builders import NOW, new_object, reconcile, writes_of

KIND = kinds_of("process").machine
MACHINE = new_object(KIND, "m", "ns")
LOG = archived.log_object(MACHINE, KIND, names.CREATE_LOG, "job-uid", "said", "2026-01-01T00:00:00Z")


def definition() -> Object:
    return new_object(DEFINITION, f"{KIND.plural}.{KIND.group}")


def log(deleted_for: timedelta | None = None) -> Object:
    meta = LOG["metadata"]
    if deleted_for is None:
        return LOG
    annotations = {**meta["annotations"], DELETED_SINCE: (NOW - deleted_for).isoformat()}
    return {**LOG, "metadata": {**meta, "annotations": annotations}}


def decide(*objects: Object) -> Decision:
    key = f"{names.ARCHIVE_NAMESPACE}/{LOG['metadata']['name']}"
    return reconcile(CONTROLLER, key, *objects, dynamic_kinds=[KIND.metadata_only()], settings=Settings().get)


def test_a_log_stays_while_its_machine_exists() -> None:
    assert writes_of(decide(log(), definition(), MACHINE)) == []


@pytest.mark.parametrize(
    "objects",
    [
        [definition()],
        [],  # its kind is deleted
        [definition(), {**MACHINE, "metadata": {**MACHINE["metadata"], "uid": "another"}}],
    ],
)
def test_the_deletion_of_a_machine_is_recorded_first(objects: list[Object]) -> None:
    (write,) = writes_of(decide(log(), *objects))
    assert isinstance(write, Patch)
    assert DELETED_SINCE in write.patch["metadata"]["annotations"]


def test_a_log_is_deleted_a_week_after_its_machine() -> None:
    after_six_days = decide(log(timedelta(days=6)), definition())
    assert writes_of(after_six_days) == []
    assert after_six_days.wake_at == NOW + timedelta(days=1)
    (write,) = writes_of(decide(log(timedelta(days=7)), definition()))
    assert isinstance(write, Delete)


def test_the_end_of_a_long_log_is_kept() -> None:
    text = "é" * archived.MAX_LOG_BYTES + "the end"
    tail = archived.log_tail(text)
    assert tail.endswith("the end")
    assert len(tail.encode()) <= archived.MAX_LOG_BYTES


@pytest.mark.parametrize("suffix", ["", "-" + "long" * 15])
def test_machines_of_two_namespaces_share_no_name_in_the_archive(suffix: str) -> None:
    """Otherwise users who create machines in `team` could replace logs and state of namespace `team-x`."""
    places = (("team", f"x-y{suffix}"), ("team-x", f"y{suffix}"))
    machines = [
        {**MACHINE, "metadata": {"namespace": namespace, "name": name, "uid": "u"}} for namespace, name in places
    ]
    logs = [archived.log_object(each, KIND, names.CREATE_LOG, "job-uid", "said", "") for each in machines]
    states = [archived.state_copy({"data": {}}, each, KIND) for each in machines]
    for one, other in (logs, states):
        assert one["metadata"]["name"] != other["metadata"]["name"]


def test_names_in_the_archive_are_valid_and_unique_for_long_machine_names() -> None:
    longest = names.archived_log("n" * 63, "m" * 250)
    assert len(longest) <= 253
    assert longest != names.archived_log("n" * 63, "m" * 249 + "x")


def test_no_kind_is_watched_for_a_config_map_of_a_user() -> None:
    """Users choose its annotations, and each invented kind would cost a watch for ever."""
    annotations = {**LOG["metadata"]["annotations"], archived.KIND_OF: "Invented"}
    user_config_map = {**LOG, "metadata": {**LOG["metadata"], "namespace": "team", "annotations": annotations}}
    key = f"team/{LOG['metadata']['name']}"
    decision = reconcile(CONTROLLER, key, user_config_map, definition(), settings=Settings().get)
    assert writes_of(decision) == []
