"""Generations of encryption keys: which of them servers load in each phase, and which are kept for snapshots."""

from __future__ import annotations

import base64
import json

import pytest

from herder.api.rke.etcd.encryption import BEFORE, SNAPSHOT_METADATA, KeyState, data_key, generation_of, needed_by
from herder.engine.meta.kinds import Object


def snapshot(*generations: int, metadata: str = "") -> Object:
    named = {SNAPSHOT_METADATA: metadata or ",".join(map(str, generations))} if generations or metadata else {"a": "b"}
    return {"snapshotFile": {"metadata": base64.b64encode(json.dumps(named).encode()).decode()}}


def test_a_new_key_only_decrypts_until_all_servers_have_it() -> None:
    state = KeyState((1,), (1,))
    prepared = state.prepared("run-1")
    assert prepared.loaded == (1, 2)
    assert prepared.prepared("run-1") == prepared, "a repeated phase adds no other key"
    assert prepared.rotated().loaded == prepared.rotated().rotated().loaded == (2, 1)
    assert prepared.rotated().reduced(()).loaded == (2,)


def test_a_rotation_after_one_that_failed_keeps_all_keys_until_it_is_done() -> None:
    failed = KeyState((1,), (1,)).prepared("run-1").rotated()
    again = failed.prepared("run-2")
    assert (again.loaded, again.rotated().loaded) == ((2, 1, 3), (3, 2, 1))
    assert again.rotated().reduced(()).loaded == (3,)


def test_keys_of_snapshots_are_stored_and_loaded_for_a_restore() -> None:
    state = KeyState((3,), (1, 2, 3))
    assert state.pruned(needed_by([snapshot(1), snapshot(3)], state.stored)).stored == (1, 3)
    assert state.with_keys({1}).loaded == (3, 1)
    assert KeyState((3,), (1, 3)).missing({BEFORE, 1, 2}) == [2]


def test_what_encrypted_before_is_loaded_while_a_snapshot_needs_it() -> None:
    state = KeyState((BEFORE,), ()).prepared("run-1").rotated()
    assert state.loaded == (1, BEFORE)
    assert state.reduced(needed_by([snapshot()], ())).loaded == (1, BEFORE)
    assert state.reduced(needed_by([snapshot(1)], ())).loaded == (1,)


@pytest.mark.parametrize("metadata", ["x", "1,", "-1", "1" * 10, ",".join(["1"] * 65), "1;2"])
def test_a_report_of_another_form_may_need_every_key(metadata: str) -> None:
    assert needed_by([snapshot(metadata=metadata)], (1, 2)) == {BEFORE, 1, 2}


@pytest.mark.parametrize("file", [{}, {"metadata": ""}, {"metadata": "%"}, {"metadata": "eyJhIjoxfQ=="}])
def test_no_key_is_deleted_while_the_metadata_of_a_snapshot_is_unknown(file: Object) -> None:
    state = KeyState((3,), (1, 2, 3))
    assert state.pruned(needed_by([{"snapshotFile": file}], state.stored)).stored == (1, 2, 3)
    assert state.reduced(needed_by([{"snapshotFile": file}], state.stored)).loaded == (3,)


def test_the_state_is_part_of_the_status() -> None:
    state = KeyState((2, 1), (1, 2), "run-1")
    assert KeyState.of({"status": state.to_status()}) == state
    assert KeyState.of({}) is None


def test_names_of_keys() -> None:
    assert [generation_of(each) for each in (data_key(7), "key-0", "key-x", "other")] == [7, None, None, None]
