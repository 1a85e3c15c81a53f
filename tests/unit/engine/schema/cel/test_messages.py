"""Object and JSONPatch messages, which mutating policies create."""

from __future__ import annotations

import re
from typing import Any

import pytest

from herder.engine.schema.cel import CelError, admission_env, compile
from herder.engine.schema.cel.messages import as_json, misnamed_parts

ENV = admission_env(json_patch=True)
BINDINGS: dict[str, Any] = {"object": {"metadata": {"name": "n"}, "spec": {"replicas": 2}}}


def evaluate_message(text: str) -> Any:
    return compile(text, ENV).evaluate(BINDINGS)


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("Object{}", {}, "Object"),
        ("Object{spec: Object.spec{replicas: object.spec.replicas + 1}}", {"spec": {"replicas": 3}}, "Object"),
        ("Object{?a: optional.none(), ?b: optional.of(1)}", {"b": 1}, "Object"),
        ("Object.spec{list: [1, 2], map: {'a': b'x'}}", {"list": [1, 2], "map": {"a": "eA=="}}, "Object.spec"),
        ("[JSONPatch{op: 'add', path: '/a', value: 1u}]", [{"op": "add", "path": "/a", "value": 1}], "list(JSONPatch)"),
        ("Object{t: timestamp('2026-01-02T03:04:05Z')}", {"t": "2026-01-02T03:04:05Z"}, "Object"),
    ],
)
def test_objects_are_created(text: str, value: Any, kind: str) -> None:
    assert as_json(evaluate_message(text)) == value
    assert str(compile(text, ENV).result_type) == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("JSONPatch{op: 1}", "expected type of field 'op' is 'string' but provided type is 'int'"),
        ("JSONPatch{other: 'x'}", "'other'"),
        ("Other{}", "undeclared reference to 'Other' (in container '')"),
        ("Objects{}", "undeclared reference to 'Objects' (in container '')"),
        ("string{}", "'string' is not a message type"),
    ],
)
def test_invalid_object_expressions_are_rejected(text: str, message: str) -> None:
    with pytest.raises(CelError, match=re.escape(message)):
        compile(text, ENV)


def test_only_mutating_policies_create_objects() -> None:
    with pytest.raises(CelError, match="undeclared reference to 'Object'"):
        compile("Object{}", admission_env())


def test_object_types_must_match_their_field_path() -> None:
    assert (
        list(misnamed_parts(evaluate_message("Object{spec: Object.spec{items: [Object.spec.items{}]}}"), "Object"))
        == []
    )
    (message,) = misnamed_parts(evaluate_message("Object{spec: [Object.status{}]}"), "Object")
    assert message.startswith('unexpected type name "Object.status", expected "Object.spec"')
