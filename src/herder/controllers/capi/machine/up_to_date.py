"""Whether a Machine is what its MachineDeployment now wants.

As the MachineDeployment itself judges: by the template of the MachineSet that the Machine belongs to. Of Machines
that no MachineDeployment rules, others say whether they are up to date.
"""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import Condition, condition
from herder.api.capi.templates import differences
from herder.controllers.capi.machine.readiness import Timed
from herder.controllers.capi.machine.scene import Scene
from herder.engine.meta.kinds import Object

UP_TO_DATE = "UpToDate"


def up_to_date(scene: Scene, updating: Condition, node_info: Object, now: datetime) -> Timed | None:
    if scene.machine_set is None or scene.deployment is None:
        return None
    problems = differences(scene.machine_set["spec"]["template"], scene.deployment["spec"]["template"])
    after = (scene.deployment["spec"].get("rollout") or {}).get("after")
    restart = datetime.fromisoformat(after) if after else None
    made = datetime.fromisoformat(scene.machine_set["metadata"]["creationTimestamp"])
    if restart is not None and made < restart < now:
        problems.append("MachineDeployment spec.rolloutAfter expired")
    return Timed(_judged(scene, problems, updating, node_info), restart if restart and restart >= now else None)


def _judged(scene: Scene, problems: list[str], updating: Condition, node_info: Object) -> Condition:
    if problems:
        return condition(UP_TO_DATE, "False", "NotUpToDate", "\n".join(f"* {problem}" for problem in problems))
    if updating["status"] == "True":
        return condition(UP_TO_DATE, "False", "Updating", f"* {updating['message']}")
    wanted, runs = scene.machine["spec"].get("version"), node_info.get("kubeletVersion")
    if wanted and runs and wanted != runs:
        return condition(UP_TO_DATE, "False", "Updating", f"* Node runs version {runs}, {wanted} required")
    return condition(UP_TO_DATE, "True", "UpToDate")
