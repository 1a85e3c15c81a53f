"""Strategy of CustomResourceDefinition: defaults, server-owned fields and updates."""

from __future__ import annotations

import copy

import pytest

from herder.engine.apiserver.crds import DefinitionStrategy
from herder.engine.meta.kinds import Object
from tests.unit.engine.apiserver.crds.samples import context, definition

STRATEGY = DefinitionStrategy()


def rejected(new: Object, old: Object) -> dict[str, str]:
    new = copy.deepcopy(new)
    new["metadata"]["resourceVersion"] = "5"
    STRATEGY.prepare_update(new, old, context())
    problems = [*STRATEGY.validate(new, context()), *STRATEGY.validate_update(new, old, context())]
    return {problem.field: problem.body for problem in problems}


def test_names_and_conversion_are_defaulted() -> None:
    crd = definition(settled=False)
    crd["spec"]["names"] = {"plural": "widgets", "kind": "Widget"}
    del crd["spec"]["conversion"]
    STRATEGY.default(crd, context())
    assert crd["spec"]["names"] == {
        "plural": "widgets",
        "kind": "Widget",
        "singular": "widget",
        "listKind": "WidgetList",
    }
    assert crd["spec"]["conversion"] == {"strategy": "None"}


def test_the_port_of_a_conversion_service_is_defaulted() -> None:
    service = {"namespace": "a", "name": "b"}
    webhook = {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}
    crd = definition(conversion={"strategy": "Webhook", "webhook": webhook})
    STRATEGY.default(crd, context())
    assert service == {"namespace": "a", "name": "b", "port": 443}


def test_a_new_definition_has_only_stored_versions_in_its_status() -> None:
    crd = definition()
    STRATEGY.prepare_create(crd, context())
    names = {"plural": "", "kind": ""}
    assert crd["status"] == {"conditions": None, "acceptedNames": names, "storedVersions": ["v1"]}


def test_a_valid_definition_has_no_errors() -> None:
    assert list(STRATEGY.validate(definition(), context())) == []


def test_users_do_not_write_the_status_of_a_definition() -> None:
    old, new = definition(), definition()
    new["status"] = {}
    STRATEGY.prepare_update(new, old, context())
    assert new["status"] == old["status"]


def test_a_new_storage_version_is_added_to_the_stored_ones() -> None:
    old, new = definition(), definition()
    first, second = new["spec"]["versions"]
    first["storage"], second["storage"] = False, True
    STRATEGY.prepare_update(new, old, context())
    assert new["status"]["storedVersions"] == ["v1", "v1alpha1"]
    assert old["status"]["storedVersions"] == ["v1"]


def test_a_version_with_stored_objects_cannot_be_dropped() -> None:
    new = definition()
    new["spec"]["versions"] = [{**new["spec"]["versions"][1], "storage": True}]
    assert rejected(new, definition()) == {
        "status.storedVersions[0]": 'Invalid value: "v1": missing from spec.versions; v1 was previously a storage '
        "version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 "
        "and removes v1 from status.storedVersions"
    }


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("spec.scope", lambda spec: spec.update(scope="Cluster")),
        ("spec.names.kind", lambda spec: spec["names"].update(kind="Gadget")),
    ],
)
def test_scope_and_names_are_immutable_once_established(field: str, change: object) -> None:
    new = definition()
    change(new["spec"])  # type: ignore[operator]
    assert "field is immutable" in rejected(new, definition())[field]
    assert field not in rejected(new, definition(settled=False) | {"status": {"storedVersions": ["v1"]}})


def test_group_and_plural_can_never_change() -> None:
    new = definition()
    new["spec"]["names"]["plural"] = "gadgets"
    new["metadata"]["name"] = "gadgets.example.com"
    assert "field is immutable" in rejected(new, definition(settled=False))["spec.names.plural"]


def test_a_missing_approval_annotation_may_stay_missing_on_update() -> None:
    old = definition(group="example.k8s.io")
    assert "metadata.annotations[api-approved.kubernetes.io]" not in rejected(old, old)
    unapproved = [error.field for error in STRATEGY.validate(old, context())]
    assert unapproved == ["metadata.annotations[api-approved.kubernetes.io]"]


def test_status_writes_validate_only_the_status() -> None:
    broken = definition(scope="Nowhere")
    assert list(STRATEGY.validate(broken, context("status"))) == []
    broken["status"]["acceptedNames"]["kind"] = "Not_A_Kind"
    assert [error.field for error in STRATEGY.validate(broken, context("status"))] == ["status.acceptedNames.kind"]


def test_a_deleted_definition_waits_for_its_instances() -> None:
    crd = definition()
    STRATEGY.prepare_delete(crd, context())
    assert crd["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    assert crd["status"]["conditions"][-1] == {
        "type": "Terminating",
        "status": "True",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
        "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    }


def test_unknown_formats_are_warned_about_once() -> None:
    crd = definition()
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["color"]["format"] = "rainbow"
    assert list(STRATEGY.warnings(crd, None)) == ['unrecognized format "rainbow"']
    assert list(STRATEGY.warnings(crd, crd)) == []
    assert list(STRATEGY.warnings(definition(), None)) == []
