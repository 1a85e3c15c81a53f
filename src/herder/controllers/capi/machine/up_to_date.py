"""UpToDate condition of a Machine, compared like its MachineDeployment does: by the template of its MachineSet.

For Machines without a MachineDeployment, other controllers set this condition.
"""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import Condition, condition
from herder.api.capi.templates import differences
from herder.controllers.capi.machine.readiness import Timed
from herder.controllers.capi.machine.scope import MachineScope
from herder.engine.meta.kinds import Object

UP_TO_DATE = "UpToDate"


def up_to_date(scope: MachineScope, updating: Condition, node_info: Object, now: datetime) -> Timed | None:
    if scope.machine_set is None or scope.deployment is None:
        return None
    problems = differences(scope.machine_set["spec"]["template"], scope.deployment["spec"]["template"])
    after = (scope.deployment["spec"].get("rollout") or {}).get("after")
    restart = datetime.fromisoformat(after) if after else None
    made = datetime.fromisoformat(scope.machine_set["metadata"]["creationTimestamp"])
    if restart is not None and made < restart < now:
        problems.append("MachineDeployment spec.rolloutAfter expired")
    return Timed(_judged(scope, problems, updating, node_info), restart if restart and restart >= now else None)


def _judged(scope: MachineScope, problems: list[str], updating: Condition, node_info: Object) -> Condition:
    if problems:
        return condition(UP_TO_DATE, "False", "NotUpToDate", "\n".join(f"* {problem}" for problem in problems))
    if updating["status"] == "True":
        return condition(UP_TO_DATE, "False", "Updating", f"* {updating['message']}")
    wanted, runs = scope.machine["spec"].get("version"), node_info.get("kubeletVersion")
    if wanted and runs and wanted != runs:
        return condition(UP_TO_DATE, "False", "Updating", f"* Node runs version {runs}, {wanted} required")
    return condition(UP_TO_DATE, "True", "UpToDate")
