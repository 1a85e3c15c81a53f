"""Compiled schema of one version of a custom resource: pruning, defaulting and validation of its objects.

Parts are compiled on first use, since large schemas take time and many are never written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from herder.engine.meta.errors import BadRequest, FieldError
from herder.engine.meta.kinds import Object
from herder.engine.schema import defaulting, fastcheck, listtypes, nodes, objectmeta, pruning, validation
from herder.engine.schema.correlation import Correlated
from herder.engine.schema.nodes import Node, Schema
from herder.engine.schema.rules.compiler import RuleCompiler, compile_with_cel
from herder.engine.schema.rules.rules import RuleTree, has_rules

# After these errors rules are not evaluated: they may rely on the schema.
_BLOCKING = frozenset(
    (
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    )
)
_RULES_SKIPPED = FieldError(
    "FieldValueInvalid",
    "<nil>",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)


def compile_schema(schema: Schema, *, rules: RuleCompiler | None = None) -> CompiledSchema:
    """Compile a structural schema (`openAPIV3Schema`). `rules` compiles its CEL rules; the default is the CEL
    package."""
    return CompiledSchema(schema, rules or compile_with_cel)


class CompiledSchema:
    """Applies a schema to objects."""

    def __init__(self, schema: Schema, rules: RuleCompiler) -> None:
        self.schema = schema
        self._rule_compiler = rules

    # --- pruning and defaulting

    def prune(self, obj: Object) -> list[str]:
        """Drop unknown fields in place and return warnings such as `unknown field "spec.foo"`.

        Nulls without meaning are dropped too, and embedded metadata is coerced; raises BadRequest if that is
        impossible. The object's own metadata is not changed.
        """
        unknown: list[str] = []
        if not self._is_clean(obj):
            try:
                unknown = pruning.prune(obj, self._node, root=True)
                pruning.drop_nulls(obj, self._node)
            except RecursionError:
                raise BadRequest("the object is nested too deeply") from None
        if self._has_embedded:
            found: list[str] = []
            objectmeta.coerce_embedded(self._node, obj, found)
            unknown += sorted(found)
        return [f'unknown field "{path}"' for path in unknown]

    def default(self, obj: Object) -> None:
        """Apply the schema's defaults in place."""
        if self._fill is not None:
            self._fill(obj)

    # --- validation

    def validate(
        self,
        obj: Object,
        old: Object | None = None,
        *,
        others: Sequence[FieldError] = (),
        warnings: list[str] | None = None,
    ) -> list[FieldError]:
        """Return the errors of the schema and its rules. With `old`, unchanged errors are ratcheted.

        Failures of rules that are ratcheted are added to `warnings`. `others` are errors found outside the schema,
        which are reported before those of list types and rules.
        """
        correlated = Correlated(self._node, obj, old) if old is not None else None
        errors: list[FieldError] = []
        if not self._is_valid(obj):
            errors = validation.validate(self._node, obj, correlated)
        errors += others
        if self._has_embedded:
            errors += objectmeta.validate_embedded(self._node, obj)
        errors += self._duplicates(obj, old)
        return self._with_rules(errors, obj, old, correlated, warnings)

    def validate_status(
        self,
        obj: Object,
        old: Object,
        *,
        others: Sequence[FieldError] = (),
        warnings: list[str] | None = None,
    ) -> list[FieldError]:
        """Validate a write to the status subresource; the rest of the object is not validated again."""
        correlated = Correlated(self._node, obj, old)
        errors: list[FieldError] = []
        status = self._node.properties.get("status")
        if status is not None and "status" in obj:
            errors = validation.validate(status, obj["status"], correlated.key("status"), base="status")
        errors += others
        errors += self._duplicates(obj, old)
        return self._with_rules(errors, obj, old, correlated, warnings)

    def _duplicates(self, obj: Object, old: Object | None) -> list[FieldError]:
        errors: list[FieldError] = []
        if self._list_types is not None:
            self._list_types(obj, "", errors)
            if errors and old is not None:
                before: list[FieldError] = []
                self._list_types(old, "", before)
                if before:  # existing duplicates are tolerated
                    return []
        return errors

    def _with_rules(
        self,
        errors: list[FieldError],
        obj: Object,
        old: Object | None,
        correlated: Correlated | None,
        warnings: list[str] | None,
    ) -> list[FieldError]:
        if self._rules is None:
            return errors
        if any(error.kind in _BLOCKING for error in errors):
            return [*errors, _RULES_SKIPPED]
        return errors + self._rules.validate(obj, old, correlated, warnings=warnings)

    # --- compiled on first use

    @cached_property
    def _node(self) -> Node:
        return nodes.read(self.schema)

    @cached_property
    def _is_clean(self) -> pruning.IsClean:
        return pruning.compile_clean(self._node, root=True)

    @cached_property
    def _fill(self) -> defaulting.Fill | None:
        return defaulting.compile_default(self._node)

    @cached_property
    def _is_valid(self) -> fastcheck.IsValid:
        return fastcheck.compile_check(self._node) or _accept_all

    @cached_property
    def _list_types(self) -> listtypes.Check | None:
        return listtypes.compile_list_types(self._node)

    @cached_property
    def _has_embedded(self) -> bool:
        return objectmeta.has_embedded(self._node)

    @cached_property
    def _rules(self) -> RuleTree | None:
        return RuleTree(self._node, self._rule_compiler, root=True) if has_rules(self._node) else None


def _accept_all(value: Any) -> bool:
    return True
