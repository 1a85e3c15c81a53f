"""One version of a custom resource, compiled: what its schema does to objects.

Compilation happens part by part on first use, since large schemas take a while and many are never written to.
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
from herder.engine.schema.rule_compiler import RuleCompiler, compile_with_cel
from herder.engine.schema.rules import RuleTree, has_rules

# Errors that make rules meaningless: they may assume what the schema promises.
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
    """Compile a structural schema (`openAPIV3Schema`). `rules` compiles its CEL rules, the CEL package if not given."""
    return CompiledSchema(schema, rules or compile_with_cel)


class CompiledSchema:
    def __init__(self, schema: Schema, rules: RuleCompiler) -> None:
        self.schema = schema
        self._rule_compiler = rules

    # --- on the way in

    def prune(self, obj: Object) -> list[str]:
        """Drop what the schema does not know, in place, and say so: `unknown field "spec.foo"`.

        Nulls that mean nothing go too, and embedded metadata is brought into shape; BadRequest if that cannot be done.
        The object's own metadata is left alone.
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
        """Fill in the schema's defaults, in place."""
        if self._fill is not None:
            self._fill(obj)

    # --- what is wrong

    def validate(
        self,
        obj: Object,
        old: Object | None = None,
        *,
        others: Sequence[FieldError] = (),
        warnings: list[str] | None = None,
    ) -> list[FieldError]:
        """What the schema and its rules find wrong. With `old`, wrongs that did not change are let pass.

        Rules let pass that way are added to `warnings`, for the client to be told. `others` are errors found outside
        the schema, told before those of list types and rules.
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
        """As `validate`, for a write to the status subresource: the rest of the object is not looked at again."""
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
                if before:  # who already has duplicates somewhere may keep them
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
        return fastcheck.compile_check(self._node) or _anything

    @cached_property
    def _list_types(self) -> listtypes.Check | None:
        return listtypes.compile_list_types(self._node)

    @cached_property
    def _has_embedded(self) -> bool:
        return objectmeta.has_embedded(self._node)

    @cached_property
    def _rules(self) -> RuleTree | None:
        return RuleTree(self._node, self._rule_compiler, root=True) if has_rules(self._node) else None


def _anything(value: Any) -> bool:
    return True
