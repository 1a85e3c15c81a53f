"""How long the token in an install script counts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import SECRET
from herder.api.rke import names
from herder.api.rke.node.bootstrap_token import is_valid
from herder.api.settings import Settings
from herder.controllers.bootstrap import tokens
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Patch
from tests.support.views import NOW, view_of
from tests.unit.controllers.bootstrap.stage import NAMESPACE, made

MINUTES, SECONDS = 60, 1


def token(age: float, used: float | None = None, **annotations: str) -> Object:
    marks = {names.BOOTSTRAP_TOKEN: "true", **annotations}
    if used is not None:
        marks[names.LAST_ACCESS] = timestamp(NOW - timedelta(seconds=used))
    meta = {"annotations": marks, "creationTimestamp": timestamp(NOW - timedelta(seconds=age))}
    return made(SECRET, "token", meta=meta)


def decide(secret: Object, **settings: str) -> Decision:
    flags = {f"system-agent-installer-token-{name.replace('_', '-')}": value for name, value in settings.items()}
    view = view_of(tokens.CONTROLLER, f"{NAMESPACE}/token", [secret], settings=Settings(flags=flags).get)
    return tokens.reconcile(view)


@pytest.mark.parametrize(
    ("secret", "settings", "left"),
    [
        (token(0), {}, 30 * MINUTES),
        (token(29 * MINUTES), {}, 1 * MINUTES),
        (token(30 * MINUTES), {}, 0),
        (token(1 * MINUTES, used=0), {}, 30 * SECONDS),
        (token(1 * MINUTES, used=29), {}, 1 * SECONDS),
        (token(1 * MINUTES, used=30), {}, 0),
        (token(29 * MINUTES + 50, used=0), {}, 10 * SECONDS),  # using it does not make it live longer
        (token(5 * MINUTES), {"long_ttl": "5m"}, 0),
        (token(1 * MINUTES, used=30), {"short_ttl": "1m"}, 30 * SECONDS),
        (token(90 * MINUTES, used=90), {"ttl_enabled": "false"}, None),
    ],
)
def test_a_token_counts_for_a_while_and_shortly_after_its_use(
    secret: Object, settings: dict[str, str], left: float | None
) -> None:
    decision = decide(secret, **settings)
    if left is None:
        assert (decision.writes, decision.wake_at) == ((), None)
    elif left:
        assert (decision.writes, decision.wake_at) == ((), NOW + timedelta(seconds=left))
    else:
        (write,) = decision.writes
        assert isinstance(write, Patch)
        assert write.patch == {"metadata": {"annotations": {"rke.cattle.io/bootstrap-token-invalidated": "true"}}}


def test_one_that_is_marked_stays_so_whatever_the_settings_become() -> None:
    marked = token(0, **{names.TOKEN_INVALIDATED: "true"})
    assert decide(marked) == Decision()
    assert not is_valid(marked, Settings().get, NOW)


def test_the_door_does_not_wait_for_the_mark() -> None:
    assert is_valid(token(1 * MINUTES), Settings().get, NOW)
    assert not is_valid(token(1 * MINUTES, used=31), Settings().get, NOW)


def test_other_secrets_are_left_alone() -> None:
    other = made(SECRET, "token", meta={"annotations": {}, "creationTimestamp": "2020-01-01T00:00:00Z"})
    assert decide(other) == Decision()
