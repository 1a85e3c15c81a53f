# ruff: noqa: E501 — many short requests to a line read better than one field a line
"""CustomResourceDefinitions: names, versions, schemas that are not structural, rules that do not compile."""

from __future__ import annotations

from typing import Any

from tests.conformance.objects import definition
from tests.fuzz.cases.objects import changed
from tests.fuzz.server_pair import DEFINITIONS, WIDGET_DEFINITION, posted
from tests.fuzz.wire import Input

Obj = dict[str, Any]
GOOD = definition(
    "x.fuzz.example.com", "gadgets", "Gadget", {"type": "object", "properties": {"spec": {"type": "object"}}}
)
_V = "spec/versions/0"
_SCHEMA = f"{_V}/schema/openAPIV3Schema"

_CHANGES: list[tuple[str, Any]] = [
    ("metadata/name", "other.x.fuzz.example.com"), ("metadata/name", "X"), ("metadata/name", ""), ("spec", ...), ("spec", {}), ("spec/group", ""), ("spec/group", "UPPER"), ("spec/group", "nodots"), ("spec/group", 1), ("spec/group", ...), ("spec/scope", ""), ("spec/scope", "Nope"), ("spec/scope", ...), ("spec/scope", 1), ("spec/names", {}), ("spec/names", ...), ("spec/names/plural", "X"), ("spec/names/plural", ""),
    ("spec/names/singular", "a b"), ("spec/names/kind", ""), ("spec/names/kind", "a b"), ("spec/names/kind", 1), ("spec/names/listKind", "Gadget"), ("spec/names/listKind", "x y"), ("spec/names/shortNames", ["X"]), ("spec/names/shortNames", "x"), ("spec/names/shortNames", [""]), ("spec/names/categories", ["X Y"]), ("spec/versions", []), ("spec/versions", {}), ("spec/versions", ...), ("spec/versions", [{}]), ("spec/versions", [None]),
    (f"{_V}/name", ""), (f"{_V}/name", "V1"), (f"{_V}/name", "1"), (f"{_V}/name", "v1.1"), (f"{_V}/served", "x"), (f"{_V}/served", False), (f"{_V}/storage", False), (f"{_V}/schema", ...), (f"{_V}/schema", {}), (_SCHEMA, ...), (_SCHEMA, {}), (_SCHEMA, []), (_SCHEMA, True), (f"{_V}/deprecationWarning", "x"), (f"{_V}/deprecated", "x"), (f"{_V}/subresources", {"scale": {}}), (f"{_V}/subresources", {"status": 1}), (f"{_V}/subresources", {"nope": {}}),
    (f"{_V}/subresources", {"scale": {"specReplicasPath": "spec", "statusReplicasPath": ".status.x"}}), (f"{_V}/subresources", {"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": ".spec.x"}}), (f"{_V}/subresources", {"scale": {"specReplicasPath": ".spec[0]", "statusReplicasPath": ".status.x"}}), (f"{_V}/additionalPrinterColumns", [{}]), (f"{_V}/additionalPrinterColumns", [{"name": "A", "type": "nope", "jsonPath": ".a"}]),
    (f"{_V}/additionalPrinterColumns", [{"name": "A", "type": "string", "jsonPath": ""}]), (f"{_V}/additionalPrinterColumns", [{"name": "A", "type": "string", "jsonPath": "{.a"}]), (f"{_V}/additionalPrinterColumns", [{"name": "A", "type": "string", "jsonPath": ".a[", "format": "nope"}]), (f"{_V}/additionalPrinterColumns", "x"), (f"{_V}/selectableFields", [{"jsonPath": ".spec.nope"}]), (f"{_V}/selectableFields", [{"jsonPath": ""}]), (f"{_V}/selectableFields", [{"jsonPath": ".spec"}]),
    (f"{_V}/selectableFields", [{"jsonPath": ".metadata.name"}]), (f"{_V}/selectableFields", [{"jsonPath": ".spec.a"}] * 10), ("spec/conversion", {"strategy": "Nope"}), ("spec/conversion", {"strategy": "Webhook"}), ("spec/conversion", {"strategy": "None", "webhook": {}}), ("spec/conversion", {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {}}}), ("spec/conversion", {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "http://x"}}}),
    ("spec/conversion", {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v9"], "clientConfig": {"url": "https://x"}}}), ("spec/conversion", {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://x", "caBundle": "!"}}}), ("spec/conversion", {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"service": {"namespace": "", "name": "x", "port": 0}}}}), ("spec/preserveUnknownFields", True), ("spec/preserveUnknownFields", "x"),
    ("spec/versions", [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}] * 2), ("spec/versions", [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}, {"name": "v2", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}]), ("status", {"storedVersions": []}), ("status", 1), ("nope", 1), ("spec/nope", 1),
]  # fmt: skip

_SCHEMAS: list[Any] = [
    {"type": "nope"}, {"type": "string"}, {"type": 1}, {"type": ["object"]}, {"type": "object", "properties": []}, {"type": "object", "properties": {"a": None}}, {"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"a": 1}}, {"type": "object", "properties": {"a": {"type": "array"}}}, {"type": "object", "properties": {"a": {"type": "array", "items": []}}}, {"type": "object", "properties": {"a": {"type": "array", "items": {}}}}, {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}},
    {"type": "object", "additionalProperties": {"type": "string"}, "properties": {"a": {"type": "string"}}}, {"type": "object", "properties": {"a": {"type": "object", "additionalProperties": True, "properties": {"b": {"type": "string"}}}}}, {"type": "object", "properties": {"a": {"type": "object", "additionalProperties": False}}}, {"type": "object", "$ref": "#/x"}, {"type": "object", "properties": {"a": {"$ref": "#/x"}}}, {"type": "object", "definitions": {}}, {"type": "object", "id": "x"}, {"type": "object", "patternProperties": {"a": {}}}, {"type": "object", "dependencies": {}},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}, {"type": "object", "properties": {"a": {"type": "string", "format": "nope"}}}, {"type": "object", "properties": {"a": {"type": "string", "enum": []}}}, {"type": "object", "properties": {"a": {"type": "string", "enum": ["a", "a"]}}}, {"type": "object", "properties": {"a": {"type": "string", "enum": [1]}}}, {"type": "object", "properties": {"a": {"type": "string", "default": 1}}}, {"type": "object", "properties": {"a": {"type": "string", "default": None}}},
    {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"], "default": "y"}}}, {"type": "object", "properties": {"a": {"type": "object", "default": {"nope": 1}}}}, {"type": "object", "default": {}}, {"type": "object", "properties": {"a": {"type": "string", "minLength": "x"}}}, {"type": "object", "properties": {"a": {"type": "string", "minLength": -1}}}, {"type": "object", "properties": {"a": {"type": "string", "maxLength": 1, "minLength": 5}}}, {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 0}}}, {"type": "object", "properties": {"a": {"type": "integer", "minimum": "x"}}},
    {"type": "object", "required": "a"}, {"type": "object", "required": ["a", "a"]}, {"type": "object", "required": [1]}, {"type": "object", "uniqueItems": True}, {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}}, {"type": "object", "nullable": True}, {"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}, {"type": "object", "properties": {"metadata": {"type": "string"}}}, {"type": "object", "properties": {"kind": {"type": "integer"}}}, {"type": "object", "properties": {"apiVersion": {"type": "string", "pattern": "x"}}},
    {"type": "object", "allOf": [{"type": "object"}]}, {"type": "object", "anyOf": [{"properties": {"a": {"minimum": 1}}}]}, {"type": "object", "anyOf": [{"description": "x"}]}, {"type": "object", "not": {"properties": {"a": {"type": "string"}}}}, {"type": "object", "oneOf": {}}, {"type": "object", "oneOf": []}, {"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"properties": {"a": {"default": "x"}}}]}, {"type": "object", "x-kubernetes-preserve-unknown-fields": False}, {"type": "object", "x-kubernetes-preserve-unknown-fields": "x"}, {"type": "object", "x-kubernetes-int-or-string": True},
    {"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-int-or-string": True}}}, {"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-embedded-resource": True}}}, {"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-embedded-resource": True}}}, {"type": "object", "x-kubernetes-embedded-resource": True}, {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "nope"}}}, {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "map"}}}, {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}}}, {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "object"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}}}, {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "k"]}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object", "properties": {}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["nope"]}}}, {"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-list-map-keys": ["x"]}}}, {"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-map-type": "nope"}}}, {"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-map-type": "atomic"}}}, {"type": "object", "x-kubernetes-nope": 1}, {"type": "object", "nope": 1}, {"type": "object", "discriminator": "x"}, {"type": "object", "readOnly": True}, {"type": "object", "xml": {}}, {"type": "object", "example": {"a": 1}}, {"type": "object", "externalDocs": {"url": 1}},
]  # fmt: skip

_RULES: list[Any] = [
    {}, {"rule": ""}, {"rule": " "}, {"rule": 1}, "x", [], None, {"rule": "self.a =="}, {"rule": "self.a"}, {"rule": "1"}, {"rule": "'x'"}, {"rule": "nope"}, {"rule": "self.nope"}, {"rule": "self.nope == 1"}, {"rule": "self.a == 1"}, {"rule": "self.n == 'x'"}, {"rule": "self.n + self.a == 1"}, {"rule": "nope(self)"}, {"rule": "self.a.nope()"}, {"rule": "self.a.matches('(')"}, {"rule": "self.a.startsWith(1)"}, {"rule": "size(self.n) > 1"}, {"rule": "self.l.all(x)"}, {"rule": "self.l.all(x, y)"}, {"rule": "self.l.all(1, true)"}, {"rule": "self.l.map(x, x)"},
    {"rule": "has(self)"}, {"rule": "has(self.nope)"}, {"rule": "has(self.a.b)"}, {"rule": "true && 1"}, {"rule": "true ? 1 : 2"}, {"rule": "1 ? true : false"}, {"rule": "!1"}, {"rule": "-true"}, {"rule": "self.l[0] == 1"}, {"rule": "self.l['a'] == 'x'"}, {"rule": "self.a in self.n"}, {"rule": "{1:2}[1]"}, {"rule": "{1:2} == {1:2}"}, {"rule": "[1,'a'] == []"}, {"rule": "true", "message": ""}, {"rule": "true", "message": "a\nb"}, {"rule": "true", "message": "x" * 2049}, {"rule": "true", "message": 1}, {"rule": "true", "messageExpression": "1"}, {"rule": "true", "messageExpression": "'x' +"}, {"rule": "true", "messageExpression": "self.nope"}, {"rule": "true", "messageExpression": ""},
    {"rule": "true", "reason": "Nope"}, {"rule": "true", "reason": "FieldValueInvalid"}, {"rule": "true", "fieldPath": "a"}, {"rule": "true", "fieldPath": ".nope"}, {"rule": "true", "fieldPath": ".l[0]"}, {"rule": "true", "fieldPath": ""}, {"rule": "true", "fieldPath": ".a b"}, {"rule": "true", "optionalOldSelf": True}, {"rule": "oldSelf.a == self.a", "optionalOldSelf": True}, {"rule": "oldSelf.hasValue()", "optionalOldSelf": True}, {"rule": "oldSelf.hasValue()"}, {"rule": "self.a == oldSelf.nope"}, {"rule": "self.l.all(x, self.l.all(y, self.l.all(z, x + y == z)))"}, {"rule": "self.l.exists(x, self.l.exists(y, x != y))"}, {"rule": "true" + " && true" * 3000}, {"rule": "(" * 300 + "true" + ")" * 300},
    {"rule": "self.a.matches('a+b')"}, {"rule": "1 / 0 == 1"}, {"rule": "99999999999999999999 > 1"}, {"rule": "1u == 1"}, {"rule": "duration('x') == duration('1s')"}, {"rule": "timestamp('x') < timestamp('y')"}, {"rule": "'\\xff' == ''"}, {"rule": "'a' 'b'"}, {"rule": "self.a == \"x\" // c"}, {"rule": "self.a == 'x"}, {"rule": "\x00"}, {"rule": "é == 1"}, {"rule": "if true"}, {"rule": "self.in == 1"}, {"rule": "self['a'] == 'x'"}, {"rule": "self == self"}, {"rule": "self.metadata.labels == null"}, {"rule": "request == 1"}, {"rule": "dyn(self.a) == 1"}, {"rule": "type(self.a) == string"}, {"rule": "self.a.find('(') == ''"}, {"rule": "isURL(1)"}, {"rule": "url('x').getHost() == ''"}, {"rule": "quantity('x').isInteger()"}, {"rule": "ip('x').family() == 4"},
    {"rule": "self.?a.orValue('x') == 'x'"}, {"rule": "self.?nope.hasValue()"}, {"rule": "cel.bind(x, self.a, x == 'y')"}, {"rule": "cel.bind(x, self.a, x)"}, {"rule": "self.l.sortBy(x, x) == []"}, {"rule": "self.l.isSorted()"}, {"rule": "self.l.sum() == 'x'"}, {"rule": "format.nope().validate(self.a).hasValue()"}, {"rule": "self.x_y == 1"}, {"rule": "self.x__dash__y == 1"}, {"rule": "true", "nope": 1},
]  # fmt: skip

_RULED = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "string"}}, "x-y": {"type": "integer"}}}  # fmt: skip


def with_schema(schema: Any) -> Obj:
    return changed(GOOD, _SCHEMA, schema)


def with_spec(spec: Any) -> Obj:
    return with_schema({"type": "object", "properties": {"spec": spec}})


def _case(about: str, obj: Any) -> Input:
    return posted(f"definition: {about}", f"{DEFINITIONS}?dryRun=All&fieldValidation=Strict", obj)


CASES = [_case(f"{at} = {str(value)[:90]}", changed(GOOD, at, value)) for at, value in _CHANGES]
CASES += [_case(f"schema {str(schema)[:150]}", with_schema(schema)) for schema in _SCHEMAS]
CASES += [_case(f"schema of spec {str(schema)[:150]}", with_spec(schema)) for schema in _SCHEMAS]
CASES += [
    _case(f"rule {str(rule)[:100]}", with_spec({**_RULED, "x-kubernetes-validations": [rule]})) for rule in _RULES
]
CASES += [
    posted(f"definition: update {at} = {str(value)[:90]}", f"{DEFINITIONS}/{WIDGET_DEFINITION['metadata']['name']}?dryRun=All", changed(WIDGET_DEFINITION, at, value), "PUT")
    for at, value in (("spec/group", "other.example.com"), ("spec/scope", "Cluster"), ("spec/names/plural", "others"), ("spec/names/kind", "Other"), ("spec/versions/0/name", "v2"), ("spec/versions/0/storage", False), ("metadata/name", "others.fuzz.example.com"), ("metadata/resourceVersion", "1"), ("metadata/resourceVersion", "x"), ("spec/versions/0/schema", {}))
]  # fmt: skip
