"""placeholder until planned"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Evaluate = Callable[[list[Any]], Any]


def plan() -> None:
    raise NotImplementedError
