"""One compiled MutatingAdmissionPolicy: evaluates its mutations on an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from herder.engine.apiserver.admission.conditions import Conditions
from herder.engine.apiserver.admission.policies.validating_policy import (
    bind_variables,
    compile_variables,
    criteria_of,
    variable_error,
)
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.patch.patches.json_patch import JsonPatchError, JsonPatchTestFailed, apply_json_patch
from herder.engine.patch.ssa.atomics import atomic_parts
from herder.engine.patch.typed.list_items import TypedError
from herder.engine.patch.typed.merge import merge
from herder.engine.patch.typed.validate import check

if TYPE_CHECKING:
    from herder.engine.patch.typed.types import TypeRef
    from herder.engine.schema.cel import Program


class MutationFailed(Exception):
    """A mutation failed; failurePolicy decides what happens."""


@dataclass(frozen=True, slots=True)
class _Mutation:
    """One compiled mutation."""

    text: str
    program: Program
    applies: bool  # an ApplyConfiguration; otherwise a JSON patch


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The compiled expressions of a policy."""

    variables: tuple[tuple[str, Program], ...]
    conditions: Conditions
    mutations: tuple[_Mutation, ...]


class MutatingPolicy:
    """A MutatingAdmissionPolicy, compiled on first use."""

    def __init__(self, policy: Object) -> None:
        spec = policy.get("spec") or {}
        self.name = str(policy["metadata"]["name"])
        self.param_kind: Object | None = spec.get("paramKind")
        self.criteria = criteria_of(spec.get("matchConstraints"), everything_without_rules=False)
        self.ignores_failures = spec.get("failurePolicy") == "Ignore"
        self.reinvocable = spec.get("reinvocationPolicy") == "IfNeeded"
        self._spec = spec
        self._compiled: _Compiled | str | None = None  # or the compilation error

    def apply(
        self, bindings: Mapping[str, Any], params: Object | None, obj: Object, of: Callable[[], TypeRef]
    ) -> Object:
        """Return the mutated object, or `obj` itself if the conditions do not match.

        Raises MutationFailed, and ConditionError for conditions that cannot be evaluated.
        """
        if self._compiled is None:
            self._compiled = self._compile()
        if isinstance(self._compiled, str):
            raise MutationFailed(self._compiled)
        seen = dict(bindings)
        if self.param_kind is not None:
            seen["params"] = params
        variable_errors = bind_variables(self._compiled.variables, seen)
        if not self._compiled.conditions.all_true(seen):
            return obj
        for mutation in self._compiled.mutations:
            result = _evaluate(mutation, seen, variable_errors)
            obj = _apply_configuration(obj, result, of()) if mutation.applies else _apply_json_patch(obj, result)
            seen["object"] = obj
        return obj

    def _compile(self) -> _Compiled | str:
        from herder.engine.schema.cel import CelError, compile

        try:
            variables, env = compile_variables(self._spec, mutating=True)
            mutations = []
            for item in self._spec.get("mutations") or ():
                applies = item.get("patchType") == "ApplyConfiguration"
                text = str((item.get("applyConfiguration" if applies else "jsonPatch") or {}).get("expression") or "")
                program = compile(text, env)
                wanted = "Object" if applies else "list(JSONPatch)"
                if str(program.result_type) != wanted:
                    return f"must evaluate to {wanted}"
                mutations.append(_Mutation(text.strip(), program, applies))
        except CelError as error:
            return f"compilation error: {error}"
        conditions = Conditions(self._spec.get("matchConditions") or (), env)
        return _Compiled(variables, conditions, tuple(mutations))


def _evaluate(mutation: _Mutation, seen: Mapping[str, Any], variable_errors: Mapping[str, str]) -> Any:
    from herder.engine.schema.cel import CelError

    try:
        return mutation.program.evaluate(seen)
    except CelError as error:
        why = variable_error(mutation.text, variable_errors) or str(error)
        raise MutationFailed(f"expression '{mutation.text}' resulted in error: {why}") from None


def _apply_configuration(obj: Object, result: Any, of: TypeRef) -> Object:
    """Merge an apply configuration like server-side apply does, but without field ownership."""
    from herder.engine.schema.cel.messages import OBJECT, as_json

    _check_names(result, OBJECT)
    configuration = as_json(result) | {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind")}
    try:
        check(of, configuration)
        atomic = list(atomic_parts(of, configuration))
        if atomic:
            message = ", ".join(atomic)
            why = f"may not mutate atomic arrays, maps or structs: {message}"
            raise MutationFailed(f"error applying patch: invalid ApplyConfiguration: {why}")
        merged: Object = merge(of, obj, configuration)
    except TypedError as error:
        raise MutationFailed(f"error applying patch: failed to convert patch object to typed object: {error}") from None
    return merged


def _apply_json_patch(obj: Object, operations: Any) -> Object:
    from herder.engine.schema.cel.messages import Message, as_json

    for operation in operations:
        value = operation.get("value")
        if isinstance(value, Message):
            _check_names(value, value.cel_type)
    try:
        patched = apply_json_patch(obj, [as_json(operation) for operation in operations])
    except JsonPatchTestFailed:
        return obj  # a failed test means that the patch does not apply to this object
    except JsonPatchError as error:
        raise MutationFailed(f"JSON Patch: {error.why}") from None
    except StatusError as error:
        raise MutationFailed(f"JSON Patch: {error}") from None
    if not isinstance(patched, dict):
        raise MutationFailed("JSON Patch: removed the object")
    return patched


def _check_names(result: Any, path: str) -> None:
    from herder.engine.schema.cel.messages import misnamed_parts

    problems = list(misnamed_parts(result, path))
    if problems:
        raise MutationFailed("type mismatch: " + "\n".join(problems))
