"""Schema keywords: supported keywords and combinations, and whether CEL rules compile within the cost limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from herder.engine.meta.errors import FieldError, forbidden_field, required
from herder.engine.schema import nodes
from herder.engine.schema.gotext import format_value, quote
from herder.engine.schema.nodes import META_FIELDS, Schema
from herder.engine.schema.rules.compiler import RuleCompiler
from herder.engine.schema.rules.costs import Cardinality, CostTotal, check_rules
from herder.engine.schema.rules.field_path import normalized

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_NEWLINES = re.compile(r"[\n\r]")


@dataclass(frozen=True, slots=True)
class _Context:
    """Context of a schema within its parents."""

    is_root: bool = False
    in_meta: bool = False
    no_defaults: str = ""  # why defaults are not allowed here
    uncorrelatable: str = ""  # path of the parent schema whose items or fields cannot be correlated with old values
    cardinality: Cardinality | None = None  # None inside junctors, and where rules are not checked


@dataclass(slots=True)
class _Findings:
    schema: list[FieldError] = field(default_factory=list)
    rules: list[FieldError] = field(default_factory=list)

    def add(self, other: _Findings) -> None:
        self.schema += other.schema
        self.rules += other.rules


def check_keywords(schema: Schema, path: str, compiler: RuleCompiler | None) -> list[FieldError]:
    """Check keywords and rules. Without a compiler (because the schema is not structural) rules are not compiled."""
    total = CostTotal()
    cardinality = Cardinality(1) if compiler is not None else None
    walk = _Walk(compiler, total)
    found = walk.check(schema, path, _Context(is_root=True, cardinality=cardinality))
    return found.schema + found.rules + total.errors(path)


class _Walk:
    def __init__(self, compiler: RuleCompiler | None, total: CostTotal) -> None:
        self._compiler = compiler
        self._total = total

    def check(self, schema: Any, path: str, context: _Context) -> _Findings:
        found = _Findings()
        if not isinstance(schema, Mapping):
            return found
        found.schema += _check_supported(schema, path, context)
        self._descend(schema, path, context, found)
        found.schema += _check_extensions(schema, path)
        found.schema += _check_list(schema, path)
        rules = schema.get("x-kubernetes-validations") or ()
        if rules:
            found.schema += _check_rule_texts(schema, rules, path)
            if not found.schema and context.cardinality is not None and self._compiler is not None:
                resource = context.is_root or bool(schema.get("x-kubernetes-embedded-resource"))
                found.rules += check_rules(
                    self._compiler(schema, resource_root=resource),
                    rules,
                    f"{path}.x-kubernetes-validations",
                    cardinality=context.cardinality,
                    uncorrelatable=context.uncorrelatable,
                    total=self._total,
                )
        return found

    def _descend(self, schema: Schema, path: str, context: _Context, found: _Findings) -> None:
        inner = replace(context, is_root=False)
        elements = context.cardinality.below(schema) if context.cardinality else None
        self._descend_additional(schema, path, replace(inner, cardinality=elements), found)
        for name, sub in (schema.get("properties") or {}).items():
            below = replace(inner, cardinality=elements)
            if (context.is_root or schema.get("x-kubernetes-embedded-resource")) and name in META_FIELDS:
                below = replace(below, in_meta=True)
                if context.is_root:
                    below = replace(below, no_defaults=f"in top-level {name}")
            found.add(self.check(sub, f"{path}.properties[{name}]", below))
        narrowing = replace(inner, cardinality=None)
        found.add(self.check(schema.get("not"), f"{path}.not", narrowing))
        for keyword in ("allOf", "oneOf", "anyOf"):
            for index, sub in enumerate(schema.get(keyword) or ()):
                found.add(self.check(sub, f"{path}.{keyword}[{index}]", narrowing))
        for name, sub in (schema.get("definitions") or {}).items():
            found.add(self.check(sub, f"{path}.definitions[{name}]", narrowing))
        self._descend_items(schema, path, replace(inner, cardinality=elements), found)
        for name, sub in (schema.get("dependencies") or {}).items():
            found.add(self.check(sub, f"{path}.dependencies[{name}]", narrowing))

    def _descend_additional(self, schema: Schema, path: str, context: _Context, found: _Findings) -> None:
        additional = schema.get("additionalProperties")
        if additional is None:
            return
        if schema.get("properties") and additional is not True:
            detail = "additionalProperties and properties are mutual exclusive"
            found.schema.append(forbidden_field(f"{path}.additionalProperties", detail))
        if context.in_meta:
            context = replace(context, no_defaults="inside additionalProperties applying to object metadata")
        found.add(self.check(additional, f"{path}.additionalProperties", context))

    def _descend_items(self, schema: Schema, path: str, context: _Context, found: _Findings) -> None:
        items = schema.get("items")
        if schema.get("x-kubernetes-list-type") != "map" and not context.uncorrelatable:
            context = replace(context, uncorrelatable=path)
        found.add(self.check(items, f"{path}.items", context))
        if isinstance(items, list):
            for index, sub in enumerate(items):
                found.add(self.check(sub, f"{path}.items[{index}]", context))


def _invalid(path: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", path, f"Invalid value: {format_value(value)}: {detail}")


def _unsupported(path: str, value: str, choices: tuple[str, ...]) -> FieldError:
    listed = ", ".join(map(quote, choices))
    return FieldError("FieldValueNotSupported", path, f"Unsupported value: {quote(value)}: supported values: {listed}")


def _check_supported(schema: Schema, path: str, context: _Context) -> list[FieldError]:
    found: list[FieldError] = []
    kind = schema.get("type") or ""
    if kind and kind not in _TYPES:
        found.append(_unsupported(f"{path}.type", kind, _TYPES))
    if schema.get("default") is not None and context.no_defaults:
        found.append(forbidden_field(f"{path}.default", f"must not be set {context.no_defaults}"))
    for keyword in ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"):
        value = schema.get(keyword)
        if value is not None and (value or keyword in ("additionalItems", "dependencies", "$ref")):
            found.append(forbidden_field(f"{path}.{keyword}", f"{keyword} is not supported"))
    if kind == "null":
        detail = "type cannot be set to null, use nullable as an alternative"
        found.append(forbidden_field(f"{path}.type", detail))
    if isinstance(schema.get("items"), list) and schema["items"]:
        found.append(forbidden_field(f"{path}.items", "items must be a schema object and not an array"))
    if context.in_meta and schema.get("x-kubernetes-embedded-resource"):
        detail = "must not be used inside of resource meta"
        found.append(forbidden_field(f"{path}.x-kubernetes-embedded-resource", detail))
    if schema.get("uniqueItems"):
        detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        found.append(forbidden_field(f"{path}.uniqueItems", detail))
    return found


def _check_extensions(schema: Schema, path: str) -> list[FieldError]:
    found: list[FieldError] = []
    kind = schema.get("type") or ""
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        found.append(_invalid(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined"))
    map_type, list_type = schema.get("x-kubernetes-map-type"), schema.get("x-kubernetes-list-type")
    if map_type is not None and kind != "object":
        found.append(_wrong_type(path, kind, "must be object if x-kubernetes-map-type is specified"))
    if map_type is not None and map_type not in ("atomic", "granular"):
        found.append(_unsupported(f"{path}.x-kubernetes-map-type", map_type, ("atomic", "granular")))
    if list_type is not None and kind != "array":
        found.append(_wrong_type(path, kind, "must be array if x-kubernetes-list-type is specified"))
    elif list_type == "set" and isinstance(schema.get("items"), Mapping):
        found += _check_set_items(schema["items"], f"{path}.items")
    if list_type is not None and list_type not in ("atomic", "set", "map"):
        found.append(_unsupported(f"{path}.x-kubernetes-list-type", list_type, ("atomic", "set", "map")))
    return found


def _wrong_type(path: str, kind: str, detail: str) -> FieldError:
    return _invalid(f"{path}.type", kind, detail) if kind else required(f"{path}.type", detail)


def _check_set_items(items: Schema, path: str) -> list[FieldError]:
    detail = "must be atomic as item of a list with x-kubernetes-list-type=set"
    list_type = items.get("x-kubernetes-list-type")
    if items.get("type") == "array" and list_type not in (None, "atomic"):
        return [_invalid(f"{path}.x-kubernetes-list-type", list_type, detail)]
    if items.get("type") == "object" and items.get("x-kubernetes-map-type") != "atomic":
        # kube-apiserver also quotes the list type
        return [_invalid(f"{path}.x-kubernetes-map-type", list_type, detail)]
    return []


def _check_list(schema: Schema, path: str) -> list[FieldError]:
    found: list[FieldError] = []
    list_type, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or ()
    items = schema.get("items")
    if keys and list_type != "map":
        detail = "must be map if x-kubernetes-list-map-keys is non-empty"
        at = f"{path}.x-kubernetes-list-type"
        found.append(required(at, detail) if list_type is None else _invalid(at, list_type, detail))
    if list_type == "map":
        if not keys:
            detail = "must not be empty if x-kubernetes-list-type is map"
            found.append(required(f"{path}.x-kubernetes-list-map-keys", detail))
        if items is None:
            found.append(required(f"{path}.items", "must have a schema if x-kubernetes-list-type is map"))
        elif isinstance(items, Mapping):
            found += _check_keys(items, keys, path)
    if isinstance(items, Mapping) and list_type in ("set", "map"):
        found += _check_elements(items, list_type, keys, f"{path}.items")
    return found


def _check_keys(items: Schema, keys: Any, path: str) -> list[FieldError]:
    kind = items.get("type") or ""
    if kind != "object":
        return [_invalid(f"{path}.items.type", kind, "must be object if parent array's x-kubernetes-list-type is map")]
    found: list[FieldError] = []
    at = f"{path}.x-kubernetes-list-map-keys"
    properties = items.get("properties") or {}
    for index, key in enumerate(keys):
        if key not in properties:
            found.append(_invalid(at, list(keys), "entries must all be names of item properties"))
        elif properties[key].get("type") in ("array", "object"):
            detail = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            found.append(_invalid(f"{path}.items.properties[{key}].type", kind, detail))
        if key in keys[:index]:
            found.append(_invalid(at, list(keys), "must not contain duplicate entries"))
    return found


def _check_elements(items: Schema, list_type: str, keys: Any, path: str) -> list[FieldError]:
    found: list[FieldError] = []
    if items.get("nullable"):
        detail = f"cannot be nullable when x-kubernetes-list-type is {list_type}"
        found.append(forbidden_field(f"{path}.nullable", detail))
    for key in keys if list_type == "map" else ():
        key_schema = (items.get("properties") or {}).get(key)
        if key_schema is None:
            continue
        why = "this property is in x-kubernetes-list-map-keys, so it"
        if key not in (items.get("required") or ()) and key_schema.get("default") is None:
            detail = f"{why} must have a default or be a required property"
            found.append(required(f"{path}.properties[{key}].default", detail))
        if key_schema.get("nullable"):
            found.append(forbidden_field(f"{path}.properties[{key}].nullable", f"{why} cannot be nullable"))
    return found


def _check_rule_texts(schema: Schema, rules: Any, path: str) -> list[FieldError]:
    found: list[FieldError] = []
    for index, rule in enumerate(rules):
        at = f"{path}.x-kubernetes-validations[{index}]"
        text, message = rule.get("rule") or "", rule.get("message") or ""
        if not text.strip():
            found.append(required(f"{at}.rule", "rule is not specified"))
        elif message and not message.strip():
            found.append(_invalid(f"{at}.message", message, "must be non-empty if specified"))
        elif _NEWLINES.search(message.strip()):
            found.append(_invalid(f"{at}.message", message, "must not contain line breaks"))
        elif _NEWLINES.search(text.strip()) and not message.strip():
            found.append(required(f"{at}.message", "message must be specified if rule contains line breaks"))
        expression = rule.get("messageExpression") or ""
        if expression and not expression.strip():
            found.append(required(f"{at}.messageExpression", "messageExpression must be non-empty if specified"))
        if rule.get("reason") is not None and rule["reason"] not in _REASONS:
            found.append(_unsupported(f"{at}.reason", rule["reason"], _REASONS))
        found += _check_field_path(schema, rule.get("fieldPath") or "", f"{at}.fieldPath")
    return found


def _check_field_path(schema: Schema, field_path: str, at: str) -> list[FieldError]:
    if not field_path:
        return []
    found: list[FieldError] = []
    if not field_path.strip():
        found.append(_invalid(at, field_path, "must be non-empty if specified"))
    if _NEWLINES.search(field_path):
        found.append(_invalid(at, field_path, "must not contain line breaks"))
    if normalized(field_path, nodes.read(schema)) is None:
        found.append(_invalid(at, field_path, "must be a valid path"))
    return found
