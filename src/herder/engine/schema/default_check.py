"""Check that the defaults in a schema are valid and not pruned by the schema itself."""

from __future__ import annotations

from herder.engine.meta.errors import FieldError
from herder.engine.schema import nodes, objectmeta, pruning, validation
from herder.engine.schema.correlation import same
from herder.engine.schema.defaulting import copy_json
from herder.engine.schema.gotext import format_value
from herder.engine.schema.nodes import META_FIELDS, Node, Schema
from herder.engine.schema.rules.compiler import RuleCompiler
from herder.engine.schema.rules.rules import RuleTree, has_rules


def check_defaults(schema: Schema, path: str, compiler: RuleCompiler) -> list[FieldError]:
    errors: list[FieldError] = []
    _check(nodes.read(schema), path, compiler, errors, root=True, inside_meta=False)
    return errors


def _check(
    node: Node, path: str, compiler: RuleCompiler, errors: list[FieldError], *, root: bool, inside_meta: bool
) -> None:
    resource = root or node.embedded
    inside_meta = inside_meta and not node.embedded
    if node.default is not None:
        errors += _problems(node, f"{path}.default", compiler, resource=resource, inside_meta=inside_meta)
    # Skip additionalProperties, where defaults have no effect.
    if node.items is not None:
        _check(node.items, f"{path}.items", compiler, errors, root=False, inside_meta=inside_meta)
    for name, sub in node.properties.items():
        inside = inside_meta or (resource and name in META_FIELDS)
        _check(sub, f"{path}.properties[{name}]", compiler, errors, root=False, inside_meta=inside)


def _problems(node: Node, path: str, compiler: RuleCompiler, *, resource: bool, inside_meta: bool) -> list[FieldError]:
    default = node.default
    found: list[FieldError] = []
    if not inside_meta:
        pruned = copy_json(default)
        pruning.prune(pruned, node, root=resource)
        if not same(pruned, default):
            body = f"Invalid value: {format_value(default)}: must not have unknown fields"
            found.append(FieldError("FieldValueInvalid", path, body))
    wrong: list[FieldError] = []
    if resource or objectmeta.has_embedded(node):
        wrong = objectmeta.validate_embedded(node, copy_json(default), path, root=resource)
    wrong = wrong or validation.validate(node, default, base=path)
    if not wrong and has_rules(node):
        tree = RuleTree(node, compiler, root=resource)
        wrong = tree.validate(default, default, None, path=path) or tree.validate(default, None, None, path=path)
    return found + wrong
