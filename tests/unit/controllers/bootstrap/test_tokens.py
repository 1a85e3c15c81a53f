"""Validity of the token in an install script."""

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
from tests.support.builders import LONG_AGO, NOW, new_object, reconcile
from tests.unit.controllers.bootstrap.objects import NAMESPACE

MINUTES, SECONDS = 60, 1


def token(age: float, used: float | None = None, **annotations: str) -> Object:
    all_annotations = {names.BOOTSTRAP_TOKEN: "true", **annotations}
    if used is not None:
        all_annotations[names.LAST_ACCESS] = timestamp(NOW - timedelta(seconds=used))
    created = timestamp(NOW - timedelta(seconds=age))
    return new_object(SECRET, "token", NAMESPACE, annotations=all_annotations, metadata={"creationTimestamp": created})


def decide(secret: Object, **settings: str) -> Decision:
    flags = {f"system-agent-installer-token-{name.replace('_', '-')}": value for name, value in settings.items()}
    return reconcile(tokens.CONTROLLER, f"{NAMESPACE}/token", secret, settings=Settings(flags=flags).get)


@pytest.mark.parametrize(
    ("secret", "settings", "remaining"),
    [
        (token(0), {}, 30 * MINUTES),
        (token(29 * MINUTES), {}, 1 * MINUTES),
        (token(30 * MINUTES), {}, 0),
        (token(1 * MINUTES, used=0), {}, 30 * SECONDS),
        (token(1 * MINUTES, used=29), {}, 1 * SECONDS),
        (token(1 * MINUTES, used=30), {}, 0),
        (token(29 * MINUTES + 50, used=0), {}, 10 * SECONDS),  # using it does not extend its validity
        (token(5 * MINUTES), {"long_ttl": "5m"}, 0),
        (token(1 * MINUTES, used=30), {"short_ttl": "1m"}, 30 * SECONDS),
        (token(90 * MINUTES, used=90), {"ttl_enabled": "false"}, None),
    ],
)
def test_a_token_is_valid_for_a_while_and_shortly_after_its_use(
    secret: Object, settings: dict[str, str], remaining: float | None
) -> None:
    decision = decide(secret, **settings)
    if remaining is None:
        assert (decision.writes, decision.wake_at) == ((), None)
    elif remaining:
        assert (decision.writes, decision.wake_at) == ((), NOW + timedelta(seconds=remaining))
    else:
        (write,) = decision.writes
        assert isinstance(write, Patch)
        assert write.patch == {"metadata": {"annotations": {"rke.cattle.io/bootstrap-token-invalidated": "true"}}}


def test_an_invalidated_token_stays_invalid_whatever_the_settings() -> None:
    invalidated = token(0, **{names.TOKEN_INVALIDATED: "true"})
    assert decide(invalidated) == Decision()
    assert not is_valid(invalidated, Settings().get, NOW)


def test_the_gateway_does_not_wait_for_the_annotation() -> None:
    assert is_valid(token(1 * MINUTES), Settings().get, NOW)
    assert not is_valid(token(1 * MINUTES, used=31), Settings().get, NOW)


def test_other_secrets_are_ignored() -> None:
    other = new_object(SECRET, "token", NAMESPACE, metadata={"annotations": {}, "creationTimestamp": LONG_AGO})
    assert decide(other) == Decision()
