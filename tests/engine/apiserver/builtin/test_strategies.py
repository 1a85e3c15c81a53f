"""What the real server refuses is refused here for the same reasons, in the same words."""

from __future__ import annotations

import pytest

from herder.engine.meta.errors import Invalid
from tests.engine.apiserver.builtin.answers import REAL
from tests.engine.apiserver.builtin.driving import create, update
from tests.engine.apiserver.builtin.record import refusal
from tests.engine.apiserver.builtin.refusals import CREATES, UPDATES


@pytest.mark.parametrize("name", CREATES)
def test_refuses_what_the_real_server_refuses(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        create(CREATES[name])
    assert refusal(refused.value.to_status()) == REAL["creates"][name]


@pytest.mark.parametrize("name", UPDATES)
def test_refuses_changes_the_real_server_refuses(name: str) -> None:
    old, new = UPDATES[name]
    with pytest.raises(Invalid) as refused:
        update(create(old), new)
    assert refusal(refused.value.to_status()) == REAL["updates"][name]
