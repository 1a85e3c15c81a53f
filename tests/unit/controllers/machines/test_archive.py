"""Logs of machines that are gone."""

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
from tests.support.views import NOW, view_of
from tests.unit.controllers.inmemory.stage import flat, made

KIND = kinds_of("process").machine
MACHINE = made(KIND, "m")
LOG = archived.log_object(MACHINE, KIND, names.CREATE_LOG, "job-uid", "said", "2026-01-01T00:00:00Z")


def definition() -> Object:
    return {
        "apiVersion": DEFINITION.api_version,
        "kind": DEFINITION.kind,
        "metadata": {"name": f"{KIND.plural}.{KIND.group}"},
    }


def log(gone_for: timedelta | None = None) -> Object:
    meta = LOG["metadata"]
    if gone_for is None:
        return LOG
    marks = {**meta["annotations"], DELETED_SINCE: (NOW - gone_for).isoformat()}
    return {**LOG, "metadata": {**meta, "annotations": marks}}


def decide(*objects: Object) -> Decision:
    key = f"{names.ARCHIVE_NAMESPACE}/{LOG['metadata']['name']}"
    view = view_of(CONTROLLER, key, objects, followed=[KIND.metadata_only()], settings=Settings().get)
    return CONTROLLER.reconcile(view)


def test_a_log_stays_while_its_machine_does() -> None:
    assert flat(decide(log(), definition(), MACHINE)) == []


@pytest.mark.parametrize(
    "objects",
    [
        [definition()],
        [],  # its whole kind is gone
        [definition(), {**MACHINE, "metadata": {**MACHINE["metadata"], "uid": "another"}}],
    ],
)
def test_that_a_machine_is_gone_is_noted_first(objects: list[Object]) -> None:
    (write,) = flat(decide(log(), *objects))
    assert isinstance(write, Patch)
    assert DELETED_SINCE in write.patch["metadata"]["annotations"]


def test_a_log_goes_a_week_after_its_machine() -> None:
    soon = decide(log(timedelta(days=6)), definition())
    assert flat(soon) == []
    assert soon.wake_at == NOW + timedelta(days=1)
    (write,) = flat(decide(log(timedelta(days=7)), definition()))
    assert isinstance(write, Delete)


def test_of_a_long_log_the_end_is_kept() -> None:
    text = "é" * archived.MAX_LOG_BYTES + "the end"
    kept = archived.log_tail(text)
    assert kept.endswith("the end")
    assert len(kept.encode()) <= archived.MAX_LOG_BYTES


@pytest.mark.parametrize("suffix", ["", "-" + "long" * 15])
def test_machines_of_two_namespaces_share_no_name_in_the_archive(suffix: str) -> None:
    """Else whoever creates machines in `team` replaces logs and records of namespace `team-x`."""
    places = (("team", f"x-y{suffix}"), ("team-x", f"y{suffix}"))
    machines = [{**MACHINE, "metadata": {"namespace": where, "name": name, "uid": "u"}} for where, name in places]
    logs = [archived.log_object(each, KIND, names.CREATE_LOG, "job-uid", "said", "") for each in machines]
    states = [archived.state_copy({"data": {}}, each, KIND) for each in machines]
    for one, other in (logs, states):
        assert one["metadata"]["name"] != other["metadata"]["name"]


def test_names_in_the_archive_are_valid_however_long_those_of_machines_are() -> None:
    longest = names.archived_log("n" * 63, "m" * 250)
    assert len(longest) <= 253
    assert longest != names.archived_log("n" * 63, "m" * 249 + "x")


def test_no_kind_is_watched_for_a_config_map_of_a_user() -> None:
    """Users choose its annotations, and each kind that they invent would cost a watch for ever."""
    marks = {**LOG["metadata"]["annotations"], archived.KIND_OF: "Invented"}
    theirs = {**LOG, "metadata": {**LOG["metadata"], "namespace": "team", "annotations": marks}}
    view = view_of(CONTROLLER, f"team/{LOG['metadata']['name']}", [theirs, definition()], settings=Settings().get)
    assert flat(CONTROLLER.reconcile(view)) == []
