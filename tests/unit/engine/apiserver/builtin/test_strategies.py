"""Invalid objects are rejected with the same causes and messages as by kube-apiserver."""

from __future__ import annotations

import pytest

from herder.engine.meta.errors import Invalid
from tests.unit.engine.apiserver.builtin.answers import REAL
from tests.unit.engine.apiserver.builtin.driving import create, update
from tests.unit.engine.apiserver.builtin.record import refusal
from tests.unit.engine.apiserver.builtin.refusals import CREATES, UPDATES


@pytest.mark.parametrize("name", CREATES)
def test_invalid_objects_are_rejected_as_by_kube_apiserver(name: str) -> None:
    with pytest.raises(Invalid) as rejected:
        create(CREATES[name])
    assert refusal(rejected.value.to_status()) == REAL["creates"][name]


@pytest.mark.parametrize("name", UPDATES)
def test_invalid_updates_are_rejected_as_by_kube_apiserver(name: str) -> None:
    old, new = UPDATES[name]
    with pytest.raises(Invalid) as rejected:
        update(create(old), new)
    assert refusal(rejected.value.to_status()) == REAL["updates"][name]
