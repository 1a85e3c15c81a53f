"""Guards: pure safety checks between a controller's decision and its writes.

Each guard sees one write or effect and the view it was decided on, and returns a refusal or None. Guards are written
independently of the controllers they check.
"""

from __future__ import annotations

from herder.api.guards.evictions import deny_unrequested_eviction
from herder.api.guards.example import keep_flock_minimum
from herder.api.guards.machines import (
    deny_deleting_paused_machine,
    deny_machine_above_maximum,
    deny_machine_in_deleting_cluster,
    keep_minimum_available_machines,
)
from herder.api.guards.members import (
    deny_release_of_join_server,
    keep_etcd_quorum,
    require_etcd_member_removal,
)
from herder.api.guards.plans import check_plan_write
from herder.engine.runtime.executor import Guard

GUARDS: tuple[Guard, ...] = (
    deny_machine_in_deleting_cluster,
    deny_machine_above_maximum,
    deny_deleting_paused_machine,
    keep_minimum_available_machines,
    check_plan_write,
    keep_etcd_quorum,
    deny_release_of_join_server,
    require_etcd_member_removal,
    deny_unrequested_eviction,
    keep_flock_minimum,
)
