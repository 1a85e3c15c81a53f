"""Check the field table against the schemas and against what admission and reconcilers do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from herder.api.management.crds import PROVISIONING_CLUSTER_CRD
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.admission import RULES
from herder.api.rke.fields.rows import Effect, Row
from herder.engine.schema import CompiledSchema, compile_schema
from tests.support.builders import new_object
from tests.unit.api.rke.fields.effects import Effects, effects_of
from tests.unit.api.rke.fields.samples import VERSIONS, base_spec, concrete, sample_of, with_values


def uncovered(table: Sequence[Row], paths: Iterable[str]) -> Iterator[str]:
    """Fields without a row, and rows without a field."""
    fields = set(paths)
    rows = {row.path for row in table}
    subtrees = tuple(f"{row.path}." for row in table if row.subtree)
    yield from (f"{path}: has no row" for path in sorted(fields) if path not in rows and not path.startswith(subtrees))
    for row in table:
        if row.path not in fields and not (row.subtree and any(path.startswith(f"{row.path}.") for path in fields)):
            yield f"{row.path}: is not a field of a Cluster"


def lies(table: Iterable[Row]) -> Iterator[str]:
    """Cells that are not true, each with what happens instead."""
    for row in table:
        for distribution in VERSIONS:
            for problem in _check_cell(row, distribution):
                yield f"{row.path} on {distribution}: {row.effects[distribution].value}, but {problem}"


def _check_cell(row: Row, distribution: str) -> Iterator[str]:
    sample = sample_of(row.path, distribution)
    without = with_values(base_spec(distribution), sample.given)
    path = sample.at or concrete(row.path)
    changed = with_values(without, {path: sample.value})
    if changed == without:
        yield "its sample is the default"
    before, after = _observed(json.dumps(without)), _observed(json.dumps(changed))
    yield from (f"its sample is invalid: {error}" for error in after.schema_errors)
    refused = after.refused - before.refused
    if row.effects[distribution] is Effect.REFUSED:
        if refused != {path}:
            yield f"admission rejects {', '.join(sorted(refused)) or 'nothing'}"
        if f"{path}: " not in after.effects.ignored:
            yield "the condition of a stored value does not name it"
        return
    if refused:
        yield f"admission rejects {', '.join(sorted(refused))}"
    new_errors = set(after.effects.errors) - set(before.effects.errors)
    is_same = before.effects.content == after.effects.content
    if bool(new_errors) is not sample.is_error:
        yield f"it causes {', '.join(new_errors) or 'no error'}"
    if row.effects[distribution] is Effect.DONE and is_same and not sample.is_error:
        yield "it changes neither plans nor objects"
    if row.effects[distribution] is Effect.NONE and not is_same:
        yield "it changes plans or objects"


class _Observed(NamedTuple):
    """What the API server and the reconcilers do with a spec."""

    schema_errors: tuple[str, ...]
    refused: frozenset[str]  # fields that admission rejects
    effects: Effects


@cache
def _observed(spec: str) -> _Observed:
    cluster = new_object(PROVISIONING_CLUSTER, "meadow", "fleet-default", spec=json.loads(spec))
    errors = (*_schema().prune(cluster), *map(str, _schema().validate(cluster)))
    refused = frozenset(problem.field for problem in RULES[PROVISIONING_CLUSTER].validate(cluster, None))
    return _Observed(errors, refused, effects_of(json.loads(spec)))


@cache
def _schema() -> CompiledSchema:
    return compile_schema(PROVISIONING_CLUSTER_CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
