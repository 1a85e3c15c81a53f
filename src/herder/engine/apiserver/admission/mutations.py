"""One MutatingAdmissionPolicy, compiled: what its expressions make of an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from herder.engine.apiserver.admission.conditions import Conditions
from herder.engine.apiserver.admission.policy_rules import (
    bind_variables,
    blamed_variable,
    compile_variables,
    criteria_of,
)
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.patch.atomics import atomic_parts
from herder.engine.patch.jsonpatch import JsonPatchError, JsonPatchTestFailed, apply_json_patch
from herder.engine.patch.listitems import TypedError
from herder.engine.patch.merge import merge
from herder.engine.patch.validate import check

if TYPE_CHECKING:
    from herder.engine.patch.typed import TypeRef
    from herder.engine.schema.cel import Program


class MutationFailed(Exception):
    """What failurePolicy is about."""


@dataclass(frozen=True, slots=True)
class _Mutation:
    text: str
    program: Program
    applies: bool  # an apply configuration; else a JSON patch


@dataclass(frozen=True, slots=True)
class _Compiled:
    variables: tuple[tuple[str, Program], ...]
    conditions: Conditions
    mutations: tuple[_Mutation, ...]


class MutatingPolicy:
    def __init__(self, policy: Object) -> None:
        spec = policy.get("spec") or {}
        self.name = str(policy["metadata"]["name"])
        self.param_kind: Object | None = spec.get("paramKind")
        self.criteria = criteria_of(spec.get("matchConstraints"), everything_without_rules=False)
        self.ignores_failures = spec.get("failurePolicy") == "Ignore"
        self.may_run_again = spec.get("reinvocationPolicy") == "IfNeeded"
        self._spec = spec
        self._compiled: _Compiled | str | None = None  # what was made of it, or why that failed

    def applied(
        self, bindings: Mapping[str, Any], params: Object | None, obj: Object, of: Callable[[], TypeRef]
    ) -> Object:
        """The object after all mutations; the very same one where none concerns it. Raises MutationFailed, and
        ConditionError for conditions that cannot be decided."""
        if self._compiled is None:
            self._compiled = self._compile()
        if isinstance(self._compiled, str):
            raise MutationFailed(self._compiled)
        seen = dict(bindings)
        if self.param_kind is not None:
            seen["params"] = params
        broken = bind_variables(self._compiled.variables, seen)
        if not self._compiled.conditions.hold(seen):
            return obj
        for mutation in self._compiled.mutations:
            made = _evaluated(mutation, seen, broken)
            obj = _configured(obj, made, of()) if mutation.applies else _patched(obj, made)
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


def _evaluated(mutation: _Mutation, seen: Mapping[str, Any], broken: Mapping[str, str]) -> Any:
    from herder.engine.schema.cel import CelError

    try:
        return mutation.program.evaluate(seen)
    except CelError as error:
        why = blamed_variable(mutation.text, broken) or str(error)
        raise MutationFailed(f"expression '{mutation.text}' resulted in error: {why}") from None


def _configured(obj: Object, made: Any, of: TypeRef) -> Object:
    """The object merged with a configuration, as server-side apply merges, but owned by nobody."""
    from herder.engine.schema.cel.messages import OBJECT, as_json

    _check_names(made, OBJECT)
    configuration = as_json(made) | {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind")}
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


def _patched(obj: Object, operations: Any) -> Object:
    from herder.engine.schema.cel.messages import Message, as_json

    for operation in operations:
        value = operation.get("value")
        if isinstance(value, Message):
            _check_names(value, value.cel_type)
    try:
        patched = apply_json_patch(obj, [as_json(operation) for operation in operations])
    except JsonPatchTestFailed:
        return obj  # a test that fails says that the patch is not for this object
    except JsonPatchError as error:
        raise MutationFailed(f"JSON Patch: {error.why}") from None
    except StatusError as error:
        raise MutationFailed(f"JSON Patch: {error}") from None
    if not isinstance(patched, dict):
        raise MutationFailed("JSON Patch: removed the object")
    return patched


def _check_names(made: Any, path: str) -> None:
    from herder.engine.schema.cel.messages import misnamed_parts

    problems = list(misnamed_parts(made, path))
    if problems:
        raise MutationFailed("type mismatch: " + "\n".join(problems))
