"""Credentials: who may use them, and who does."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import SECRET, SECRET_METADATA
from herder.api.machines import jobs
from herder.api.machines.credentials import CREATED_BY, CREATOR, CREDENTIAL_TYPE, RIGHTS_FINALIZER, USED_BY
from herder.api.machines.kinds import kinds_of
from herder.controllers.machines.cloud_credentials import CONTROLLER
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Delete, Patch
from tests.support.views import view_of
from tests.unit.controllers.inmemory.stage import flat, made, only_patch

KIND = kinds_of("amazonec2").machine


def credential(**more: Any) -> Object:
    return made(SECRET, "aws", type=CREDENTIAL_TYPE, **more)


def state(name: str, place: str = "ns/aws") -> Object:
    return jobs.state_secret(made(KIND, name), KIND, name, place)


def decide(*objects: Object) -> Decision:
    return CONTROLLER.reconcile(view_of(CONTROLLER, "ns/aws", objects))


def test_a_creator_gets_rights_on_that_secret_alone_and_then_the_annotation_goes() -> None:
    _finalizer, role, binding, patch = flat(decide(credential(annotations={CREATOR: "u-abc"})))
    assert not isinstance(role, Patch)
    assert isinstance(patch, Patch)
    assert patch.patch == {"metadata": {"annotations": {CREATOR: None, CREATED_BY: "u-abc"}}}
    assert [write.reason for write in (role, binding)] == ["grant the creator access to the credential"] * 2


@pytest.mark.parametrize("kind", [jobs.ROLE, jobs.ROLE_BINDING])
def test_a_role_of_somebody_else_is_not_filled(kind: Kind) -> None:
    """Whoever bound it while it was empty would read the credential."""
    decision = decide(credential(annotations={CREATOR: "u-abc"}), made(kind, "u-abc-aws"))
    assert flat(decision) == []
    assert decision.wait is not None
    assert f"{kind.kind} ns/u-abc-aws has another owner" in decision.wait.reason


def test_rights_that_were_granted_before_a_crash_are_kept() -> None:
    given = credential(annotations={CREATOR: "u-abc"})
    kept = [made(kind, "u-abc-aws", owner=given, controller=False) for kind in (jobs.ROLE, jobs.ROLE_BINDING)]
    *_, patch = flat(decide(given, *kept))
    assert isinstance(patch, Patch)
    assert patch.patch == {"metadata": {"annotations": {CREATOR: None, CREATED_BY: "u-abc"}}}


def test_what_is_no_name_of_a_user_gets_no_rights() -> None:
    decision = decide(credential(annotations={CREATOR: "a/../b"}))
    assert flat(decision) == []
    assert decision.wait is not None
    assert "is not a valid user name" in decision.wait.reason


def test_up_to_ten_machines_are_named_and_the_others_counted() -> None:
    told = only_patch(decide(credential(), state("a"), state("b"), state("other", "ns/azure")))
    assert told["metadata"]["annotations"] == {USED_BY: "Amazonec2Machine/a, Amazonec2Machine/b"}
    many = only_patch(decide(credential(), *(state(f"m-{number:02}") for number in range(13))))
    assert many["metadata"]["annotations"][USED_BY].endswith("Amazonec2Machine/m-09 and 3 more")


def test_what_a_user_wrote_is_no_machine_that_uses_it() -> None:
    """Only the manager creates Secrets of the type, so nobody has it write on Secrets of others."""
    assert flat(decide(credential(), {**state("forged"), "type": "Opaque"})) == []


def test_a_state_secret_of_another_namespace_is_no_machine_that_uses_it() -> None:
    """Machines use credentials of their own namespace, or of the one that all share."""
    edited = state("edited")
    edited["metadata"]["namespace"] = "elsewhere"
    assert flat(decide(credential(), edited)) == []


def test_nothing_is_written_where_nothing_has_changed() -> None:
    assert flat(decide(credential())) == []
    assert flat(decide(credential(annotations={USED_BY: "Amazonec2Machine/a"}), state("a"))) == []
    assert only_patch(decide(credential(annotations={USED_BY: "Amazonec2Machine/a"}))) == {
        "metadata": {"annotations": {USED_BY: None}}
    }


def test_the_rights_of_a_creator_end_before_another_user_can_have_the_name() -> None:
    """They go by name. The garbage collector would delete them, after everything else that it has to delete."""
    going = credential(deleting=True, finalizers=[RIGHTS_FINALIZER, "of-others"])
    role, binding = (made(kind, "u-abc-aws", owner=going, controller=False) for kind in (jobs.ROLE, jobs.ROLE_BINDING))
    *ended, released = flat(decide(going, role, binding))
    assert {write.ref.kind for write in ended if isinstance(write, Delete)} == {jobs.ROLE, jobs.ROLE_BINDING}
    assert isinstance(released, Patch)
    assert released.patch["metadata"]["finalizers"] == ["of-others"]


def test_the_finalizer_comes_before_the_rights() -> None:
    """If the Secret was replaced by another since it was read, the patch is refused, and nothing is granted."""
    held, *_ = flat(decide(credential(annotations={CREATOR: "u-abc"})))
    assert isinstance(held, Patch)
    assert held.patch == {"metadata": {"finalizers": [RIGHTS_FINALIZER]}}
    assert held.resource_version


def test_rights_that_an_earlier_version_granted_are_held_too() -> None:
    there = credential()
    assert only_patch(decide(there, made(jobs.ROLE, "u-abc-aws", owner=there, controller=False))) == {
        "metadata": {"finalizers": [RIGHTS_FINALIZER]}
    }


def test_a_credential_is_not_missed_where_the_watch_of_all_secrets_is_behind() -> None:
    there = credential(annotations={CREATOR: "u-abc"})
    view = view_of(CONTROLLER, "ns/aws", [there])
    view._caches[SECRET_METADATA].forget(Key("ns", "aws"), there["metadata"]["uid"])
    assert len(flat(CONTROLLER.reconcile(view))) == 4
