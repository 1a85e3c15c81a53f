"""Former names of `envtest`, for tests outside `tests/unit/engine`. Remove with the last import."""

from __future__ import annotations

from tests.unit.engine.runtime.envtest import (
    ADMIN,
    CONFIG_MAP,
    SECRET,
    START,
    Wire,
    controller,
    now,
    until,
)
from tests.unit.engine.runtime.envtest import Environment as World
from tests.unit.engine.runtime.envtest import environment as world
from tests.unit.engine.runtime.envtest import new_object as thing
from tests.unit.engine.runtime.envtest import running_manager as managed

__all__ = [
    "ADMIN",
    "CONFIG_MAP",
    "SECRET",
    "START",
    "Wire",
    "World",
    "controller",
    "managed",
    "now",
    "thing",
    "until",
    "world",
]
