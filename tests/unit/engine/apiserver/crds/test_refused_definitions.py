"""CRDs that a real kube-apiserver 1.36.3 rejects are rejected with the same causes and messages."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from herder.engine.apiserver.crds import DefinitionStrategy
from herder.engine.meta.kinds import Object
from tests.unit.engine.apiserver.crds.samples import context

REFUSED: dict[str, Any] = msgspec.json.decode((Path(__file__).parent / "refused_definitions.json").read_bytes())


def causes(crd: Object) -> list[Object]:
    crd = copy.deepcopy(crd)
    strategy = DefinitionStrategy()
    strategy.default(crd, context())
    strategy.prepare_create(crd, context())
    return [error.cause() for error in strategy.validate(crd, context())]


def in_order(listed: list[Object]) -> list[Object]:
    return sorted(listed, key=lambda cause: (cause["field"], cause["reason"], cause["message"]))


DIFFERENT = {"conversion-url", "status-root"}


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in DIFFERENT])
def test_a_definition_is_rejected_with_kube_apiservers_messages(name: str) -> None:
    assert in_order(causes(REFUSED[name]["definition"])) == in_order(REFUSED[name]["causes"])


def test_a_password_in_a_webhook_url_is_rejected_without_repeating_it() -> None:
    """kube-apiserver prints it."""
    reported = causes(REFUSED["conversion-url"]["definition"])
    assert {cause["field"] for cause in reported} == {cause["field"] for cause in REFUSED["conversion-url"]["causes"]}
    user = next(cause for cause in reported if "user information" in cause["message"])
    assert user["message"] == 'Invalid value: "u": user information is not permitted in the URL'


def test_a_rejected_schema_is_printed_as_written() -> None:
    """kube-apiserver prints its own structs instead."""
    (cause,), (theirs,) = causes(REFUSED["status-root"]["definition"]), REFUSED["status-root"]["causes"]
    assert (cause["field"], cause["reason"]) == (theirs["field"], theirs["reason"])
    assert cause["message"].rpartition("}: ")[2] == theirs["message"].rpartition("}: ")[2]
