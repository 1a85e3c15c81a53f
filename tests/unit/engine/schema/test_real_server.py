"""A running kube-apiserver still gives the recorded answers, and agrees with this package on random cases."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator

import pytest

from herder.engine.meta.errors import FieldError
from herder.engine.schema import check_structural, compile_schema
from tests.support.kube import RealKube
from tests.unit.engine.schema.cases import Json, obj
from tests.unit.engine.schema.random_cases import RandomCases
from tests.unit.engine.schema.real_server import RECORDED, Server, collect_answers

SEEDS = range(int(os.environ.get("HERDER_SCHEMA_SEEDS", "1")))
PATH = "spec.validation.openAPIV3Schema"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with RealKube(tmp_path_factory.mktemp("kube")) as kube:
        yield Server(kube)


def summarize(errors: list[FieldError]) -> list[Json]:
    return sorted([error.kind, error.field, error.body] for error in errors)


def test_a_real_server_still_gives_the_recorded_answers(server: Server) -> None:
    assert collect_answers(server) == json.loads(RECORDED.read_text())


@pytest.mark.parametrize("seed", SEEDS)
def test_random_values_of_random_schemas_are_validated_alike(server: Server, seed: int) -> None:
    chance = RandomCases(seed)
    schemas = {f"f{index}": chance.schema() for index in range(60)}
    whole = obj({"spec": obj(schemas)})
    assert summarize(check_structural(whole, PATH)) == server.refusals(whole) == []
    specs = [{name: chance.value_like(schema)} for name, schema in schemas.items() for _ in range(4)]
    compiled = compile_schema(whole)
    for spec, expected in zip(specs, server.refusals_of(f"random{seed}", schemas, specs), strict=True):
        value = {"apiVersion": "schema.example/v1", "kind": "X", "metadata": {"name": "x"}, "spec": copy.deepcopy(spec)}
        compiled.prune(value)
        compiled.default(value)
        assert summarize(compiled.validate(value)) == expected, (schemas[next(iter(spec))], spec)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_patterns_are_rejected_and_matched_alike(server: Server, seed: int) -> None:
    chance = RandomCases(seed)
    patterns = {f"p{index}": {"type": "string", "pattern": chance.pattern()} for index in range(400)}
    whole = obj({"spec": obj(patterns)})
    refused = server.refusals(whole)
    assert summarize(check_structural(whole, PATH)) == refused
    names = {field.split("properties[")[2].split("]")[0] for _, field, _ in refused}
    accepted = {name: schema for name, schema in patterns.items() if name not in names}
    specs = [dict.fromkeys(accepted, chance.text()) for _ in range(30)]
    compiled = compile_schema(obj({"spec": obj(accepted)}))
    for spec, expected in zip(specs, server.refusals_of(f"pattern{seed}", accepted, specs), strict=True):
        assert summarize(compiled.validate({"spec": spec})) == expected
