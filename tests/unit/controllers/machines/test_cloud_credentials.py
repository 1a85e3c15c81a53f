"""Cloud credentials: the rights of their creator, and the machines that use them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.conditions.lists import timestamp
from herder.api.capi.kinds import SECRET, SECRET_METADATA
from herder.api.machines import jobs
from herder.api.machines.credentials import CREATED_BY, CREATOR, CREDENTIAL_TYPE, RIGHTS_FINALIZER, USED_BY
from herder.api.machines.kinds import kinds_of
from herder.controllers.machines.cloud_credentials import CONTROLLER
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Delete, Patch
from tests.support.builders import NOW, new_object, only_patch, owner_reference, reconcile, writes_of
from tests.support.views import view_of

KIND = kinds_of("amazonec2").machine


def credential(**options: Any) -> Object:
    return new_object(SECRET, "aws", "ns", type=CREDENTIAL_TYPE, **options)


def state(name: str, place: str = "ns/aws") -> Object:
    return jobs.state_secret(new_object(KIND, name, "ns"), KIND, name, place)


def granted_role(kind: Kind) -> Object:
    """A Role or RoleBinding of the creator, as the manager grants it."""
    return new_object(
        kind, "u-abc-aws-cloud-credential", "ns", owners=[owner_reference(SECRET, "aws", controller=False)]
    )


def decide(*objects: Object) -> Decision:
    return reconcile(CONTROLLER, "ns/aws", *objects)


def test_a_creator_gets_rights_on_that_secret_and_the_annotation_is_removed() -> None:
    _finalizer, role, binding, patch = writes_of(decide(credential(annotations={CREATOR: "u-abc"})))
    assert not isinstance(role, Patch)
    assert isinstance(patch, Patch)
    assert patch.patch == {"metadata": {"annotations": {CREATOR: None, CREATED_BY: "u-abc"}}}
    assert [write.reason for write in (role, binding)] == ["grant the creator access to the credential"] * 2


@pytest.mark.parametrize("kind", [jobs.ROLE, jobs.ROLE_BINDING])
def test_a_role_of_another_owner_is_not_filled(kind: Kind) -> None:
    """Whoever bound it while it was empty could read the credential."""
    decision = decide(credential(annotations={CREATOR: "u-abc"}), new_object(kind, "u-abc-aws-cloud-credential", "ns"))
    assert writes_of(decision) == []
    assert decision.wait is not None
    assert f"{kind.kind} ns/u-abc-aws-cloud-credential has another owner" in decision.wait.reason


def test_rights_that_were_granted_before_a_crash_are_kept() -> None:
    credential_secret = credential(annotations={CREATOR: "u-abc"})
    granted = [granted_role(kind) for kind in (jobs.ROLE, jobs.ROLE_BINDING)]
    *_, patch = writes_of(decide(credential_secret, *granted))
    assert isinstance(patch, Patch)
    assert patch.patch == {"metadata": {"annotations": {CREATOR: None, CREATED_BY: "u-abc"}}}


def test_an_invalid_user_name_gets_no_rights() -> None:
    decision = decide(credential(annotations={CREATOR: "a/../b"}))
    assert writes_of(decision) == []
    assert decision.wait is not None
    assert "is not a valid user name" in decision.wait.reason


def test_the_annotation_names_ten_machines_and_counts_the_others() -> None:
    patch = only_patch(decide(credential(), state("a"), state("b"), state("other", "ns/azure")))
    assert patch["metadata"]["annotations"] == {USED_BY: "Amazonec2Machine/a, Amazonec2Machine/b"}
    many = only_patch(decide(credential(), *(state(f"m-{number:02}") for number in range(13))))
    assert many["metadata"]["annotations"][USED_BY].endswith("Amazonec2Machine/m-09 and 3 more")


def test_a_secret_of_a_user_does_not_count_as_machine_state() -> None:
    """Only the manager creates Secrets of the type, so users cannot make it annotate Secrets of others."""
    assert writes_of(decide(credential(), {**state("forged"), "type": "Opaque"})) == []


def test_a_state_secret_of_another_namespace_does_not_count() -> None:
    """Machines use credentials of their own namespace, or of the shared one."""
    edited = state("edited")
    edited["metadata"]["namespace"] = "elsewhere"
    assert writes_of(decide(credential(), edited)) == []


def test_machines_of_an_earlier_credential_of_the_name_are_not_listed() -> None:
    """They may belong to another user, who deleted the credential while machines used it."""
    earlier, later = (state(name) for name in ("of-alice", "of-mallory"))
    credential_secret = credential(metadata={"creationTimestamp": timestamp(NOW)})
    for each, seconds in ((earlier, -1), (later, 1)):
        each["metadata"]["creationTimestamp"] = timestamp(NOW + timedelta(seconds=seconds))
    patch = only_patch(decide(credential_secret, earlier, later))
    assert patch["metadata"]["annotations"] == {USED_BY: "Amazonec2Machine/of-mallory"}


def test_nothing_is_written_without_a_change() -> None:
    assert writes_of(decide(credential())) == []
    assert writes_of(decide(credential(annotations={USED_BY: "Amazonec2Machine/a"}), state("a"))) == []
    assert only_patch(decide(credential(annotations={USED_BY: "Amazonec2Machine/a"}))) == {
        "metadata": {"annotations": {USED_BY: None}}
    }


def test_the_rights_of_a_creator_end_before_another_user_can_take_the_name() -> None:
    """Rights are granted by name. The garbage collector would delete them, but only after all other objects in its
    queue."""
    deleting = credential(deleting=True, finalizers=[RIGHTS_FINALIZER, "of-others"])
    role, binding = (granted_role(kind) for kind in (jobs.ROLE, jobs.ROLE_BINDING))
    *revoked, released = writes_of(decide(deleting, role, binding))
    assert {write.ref.kind for write in revoked if isinstance(write, Delete)} == {jobs.ROLE, jobs.ROLE_BINDING}
    assert isinstance(released, Patch)
    assert released.patch["metadata"]["finalizers"] == ["of-others"]


def test_the_finalizer_is_set_before_rights_are_granted() -> None:
    """If the Secret was recreated since it was read, the patch is rejected, and nothing is granted."""
    finalizer_patch, *_ = writes_of(decide(credential(annotations={CREATOR: "u-abc"})))
    assert isinstance(finalizer_patch, Patch)
    assert finalizer_patch.patch == {"metadata": {"finalizers": [RIGHTS_FINALIZER]}}
    assert finalizer_patch.resource_version


def test_rights_that_an_earlier_version_granted_get_the_finalizer() -> None:
    credential_secret = credential()
    assert only_patch(decide(credential_secret, granted_role(jobs.ROLE))) == {
        "metadata": {"finalizers": [RIGHTS_FINALIZER]}
    }


def test_a_credential_is_found_while_the_watch_of_all_secrets_is_behind() -> None:
    credential_secret = credential(annotations={CREATOR: "u-abc"})
    view = view_of(CONTROLLER, "ns/aws", [credential_secret])
    view._caches[SECRET_METADATA].forget(Key("ns", "aws"), credential_secret["metadata"]["uid"])
    assert len(writes_of(CONTROLLER.reconcile(view))) == 4
