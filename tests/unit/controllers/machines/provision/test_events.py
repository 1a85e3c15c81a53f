"""Events of machines of node drivers: Jobs, outcomes and problems."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from herder.api.machines.kinds import kinds_of
from herder.controllers.machines.provision import conditions
from herder.controllers.machines.provision.scope import ProvisionScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View
from tests.support.builders import NOW, events_of, new_condition
from tests.unit.controllers.machines.provision.objects import NS, infra, machine

NAMED = f"server [{NS}/m] of kind (DigitaloceanMachine) for machine m in infrastructure provider"
INFRA, MACHINE = "DigitaloceanMachine m", "Machine m"


def scope(*known: Object) -> ProvisionScope:
    view = cast(View, SimpleNamespace(now=NOW))
    kind = kinds_of("digitalocean").machine
    obj = infra(status={"conditions": [*known]})
    obj["metadata"]["resourceVersion"] = "1"
    return ProvisionScope(view, kind, obj, machine(), None, None, None)


def test_outcomes_are_events_of_the_machine_object() -> None:
    assert events_of(conditions.created(scope())) == [f"Normal MachineCreated {INFRA}: Created {NAMED}"]
    assert events_of(conditions.deleted(scope())) == [f"Normal MachineRemoved {INFRA}: Deleted {NAMED}"]
    assert events_of(conditions.creating(scope())) == [], "progress"


def test_problems_are_warnings() -> None:
    (failed,) = events_of(conditions.not_created(scope(), "quota exceeded"))
    assert failed == f"Warning FailedCreate {INFRA}: failed creating {NAMED}: CreateError: quota exceeded"
    problem = "Secret ns/aws does not exist"
    expected = [f"Warning NotPrepared {about}: {problem}" for about in (INFRA, MACHINE)]
    assert events_of(conditions.not_prepared(scope(), problem, removes=False)) == expected
    pending = conditions.creating(scope(), "pod is waiting: no image")
    message = f"creating {NAMED}: pod is waiting: no image"
    assert events_of(pending) == [f"Warning PodPending {about}: {message}" for about in (INFRA, MACHINE)]


def test_what_is_known_is_no_news() -> None:
    known = new_condition("CreateJob", "False", "NotPrepared", message="no Secret")
    same = conditions.not_prepared(scope(known), "no Secret", removes=False)
    assert events_of(same) == []
