"""The safety kernel: short, pure checks between deciding and doing.

Each guard looks at one act and the view that it was decided on, and answers a refusal or nothing. Guards are written
without the controllers that they check, and know nothing of them.
"""

from __future__ import annotations

from herder.api.guards.example import flock_keeps_its_minimum
from herder.engine.runtime.carrying import Guard

GUARDS: tuple[Guard, ...] = (flock_keeps_its_minimum,)
