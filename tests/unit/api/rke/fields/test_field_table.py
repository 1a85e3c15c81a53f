"""The field table covers every field of a Cluster, and every cell is true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from herder.api.rke.fields.rows import Effect, Row
from herder.api.rke.fields.table import TABLE
from herder.api.rke.schema.cluster import CLUSTER_SPEC
from tests.unit.api.rke.fields.check import lies, uncovered
from tools.rancher_fields import field_paths, listed_paths

PATHS = {*field_paths(CLUSTER_SPEC), *listed_paths()}


def test_every_field_has_a_row() -> None:
    assert [*uncovered(TABLE, PATHS)] == []


def test_every_cell_is_true() -> None:
    assert [*lies(TABLE)] == []


# --- the check itself -----------------------------------------------------------------------------------------------


def test_a_field_without_a_row_is_found() -> None:
    for removed in TABLE:
        rest = [row for row in TABLE if row is not removed]
        expected = {path for path in PATHS if path == removed.path or path.startswith(f"{removed.path}.")}
        assert {*uncovered(rest, PATHS)} == {f"{path}: has no row" for path in expected}


def test_a_row_without_a_field_is_found() -> None:
    stale = replace(TABLE[0], path="spec.removedInRancher")
    assert [*uncovered([*TABLE, stale], PATHS)] == ["spec.removedInRancher: is not a field of a Cluster"]


@pytest.mark.parametrize("claimed", Effect)
def test_every_false_cell_is_found(claimed: Effect) -> None:
    """Each cell of the table, with another effect than the true one."""
    for row in TABLE:
        for distribution, effect in row.effects.items():
            if effect is not claimed:
                found = [*lies([with_effect(row, distribution, claimed)])]
                assert found, f"{row.path} on {distribution} is not {claimed.value}"
                assert all(each.startswith(f"{row.path} on {distribution}: {claimed.value}, but ") for each in found)


def with_effect(row: Row, distribution: str, effect: Effect) -> Row:
    return replace(row, effects={**row.effects, distribution: effect})
