"""The safety kernel: short, pure checks between deciding and doing.

Each guard looks at one act and the view that it was decided on, and answers a refusal or nothing. Guards are written
without the controllers that they check, and know nothing of them.
"""

from __future__ import annotations

from herder.api.guards.evictions import no_eviction_that_nobody_asked_for
from herder.api.guards.example import flock_keeps_its_minimum
from herder.api.guards.machines import (
    never_above_the_ceiling,
    never_below_the_minimum,
    no_machine_in_a_cluster_that_goes,
    no_machine_that_is_paused,
)
from herder.api.guards.members import (
    no_member_that_the_others_need,
    no_release_of_a_member,
    no_release_while_joined,
)
from herder.api.guards.plans import plans_do_no_harm
from herder.engine.runtime.executor import Guard

GUARDS: tuple[Guard, ...] = (
    no_machine_in_a_cluster_that_goes,
    never_above_the_ceiling,
    no_machine_that_is_paused,
    never_below_the_minimum,
    plans_do_no_harm,
    no_member_that_the_others_need,
    no_release_while_joined,
    no_release_of_a_member,
    no_eviction_that_nobody_asked_for,
    flock_keeps_its_minimum,
)
