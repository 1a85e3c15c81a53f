"""One compiled ValidatingAdmissionPolicy: evaluates its variables, conditions and validations on a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from herder.engine.apiserver.admission.conditions import ConditionError, Conditions
from herder.engine.apiserver.admission.matching import Criteria
from herder.engine.meta.kinds import Object

if TYPE_CHECKING:
    from herder.engine.schema.cel import Env, Program

_MAX_MESSAGE = 5 << 10


@dataclass(frozen=True, slots=True)
class Denial:
    """A failed validation, with the reason of the Status."""

    message: str
    reason: str = "Invalid"


@dataclass(frozen=True, slots=True)
class _Validation:
    """One compiled validation."""

    text: str
    program: Program
    message: str
    message_program: Program | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The compiled expressions of a policy."""

    variables: tuple[tuple[str, Program], ...]
    conditions: Conditions
    validations: tuple[_Validation, ...]


def criteria_of(resources: Object | None, *, everything_without_rules: bool) -> Criteria:
    """Return the criteria of a policy's matchConstraints or a binding's matchResources."""
    given = resources or {}
    return Criteria(
        rules=given.get("resourceRules"),
        excluded=given.get("excludeResourceRules"),
        namespace_selector=given.get("namespaceSelector"),
        object_selector=given.get("objectSelector"),
        match_policy=given.get("matchPolicy") or "Equivalent",
        everything_without_rules=everything_without_rules,
    )


class ValidatingPolicy:
    """A ValidatingAdmissionPolicy, compiled on first use."""

    def __init__(self, policy: Object) -> None:
        spec = policy.get("spec") or {}
        self.name = str(policy["metadata"]["name"])
        self.param_kind: Object | None = spec.get("paramKind")
        self.criteria = criteria_of(spec.get("matchConstraints"), everything_without_rules=False)
        self.ignores_failures = spec.get("failurePolicy") == "Ignore"
        self._spec = spec
        self._compiled: _Compiled | str | None = None  # or the compilation error

    def denials(self, bindings: Mapping[str, Any], params: Object | None) -> list[Denial]:
        """Return the denials of a write. Evaluation errors count, unless failurePolicy is Ignore."""
        if self._compiled is None:
            self._compiled = self._compile()
        if isinstance(self._compiled, str):
            return self._failures([self._compiled])
        compiled = self._compiled
        seen = dict(bindings)
        if self.param_kind is not None:
            seen["params"] = params
        variable_errors = bind_variables(compiled.variables, seen)
        try:
            if not compiled.conditions.all_true(seen):
                return []
        except ConditionError as error:
            return self._failures([str(error)])
        return self._evaluate(compiled, seen, variable_errors)

    def _evaluate(
        self, compiled: _Compiled, seen: Mapping[str, Any], variable_errors: Mapping[str, str]
    ) -> list[Denial]:
        from herder.engine.schema.cel import CelError

        denials: list[Denial] = []
        for validation in compiled.validations:
            try:
                if validation.program.evaluate(seen) is not True:
                    denials.append(Denial(_message(validation, seen), validation.reason))
            except CelError as error:
                why = variable_error(validation.text, variable_errors) or str(error)
                denials += self._failures([f"expression '{validation.text}' resulted in error: {why}"])
        return denials

    def _failures(self, messages: list[str]) -> list[Denial]:
        return [] if self.ignores_failures else [Denial(message) for message in messages]

    def _compile(self) -> _Compiled | str:
        from herder.engine.schema.cel import CelError, compile

        spec = self._spec
        try:
            variables, env = compile_variables(spec)
            validations = tuple(
                _Validation(
                    text=str(item["expression"]).strip(),
                    program=compile(str(item["expression"]), env),
                    message=str(item.get("message") or "").strip(),
                    message_program=compile(item["messageExpression"], env) if item.get("messageExpression") else None,
                    reason=str(item.get("reason") or "Invalid"),
                )
                for item in spec.get("validations") or ()
            )
        except CelError as error:
            return f"compilation error: {error}"
        return _Compiled(variables, Conditions(spec.get("matchConditions") or (), env), validations)


def compile_variables(spec: Object, *, mutating: bool = False) -> tuple[tuple[tuple[str, Program], ...], Env]:
    """Compile a policy's variables, each of which sees those before it, and return the environment of its other
    expressions."""
    from herder.engine.schema.cel import Type, admission_env, compile

    has_params = spec.get("paramKind") is not None
    types: dict[str, Type] = {}
    variables: list[tuple[str, Program]] = []
    for variable in spec.get("variables") or ():
        program = compile(str(variable["expression"]), admission_env(params=has_params, variables=types))
        variables.append((str(variable["name"]), program))
        types[str(variable["name"])] = program.result_type
    return tuple(variables), admission_env(params=has_params, variables=types, json_patch=mutating)


def bind_variables(variables: tuple[tuple[str, Program], ...], seen: dict[str, Any]) -> dict[str, str]:
    """Bind `variables`. The error of a failed one is returned: it matters only to expressions that use the variable."""
    from herder.engine.schema.cel import CelError

    values: dict[str, Any] = {}
    variable_errors: dict[str, str] = {}
    seen["variables"] = values
    for name, program in variables:
        try:
            values[name] = program.evaluate(seen)
        except CelError as error:
            why = variable_error(program.text, variable_errors) or error
            variable_errors[name] = f'composited variable "{name}" fails to evaluate: {why}'
    return variable_errors


def variable_error(text: str, variable_errors: Mapping[str, str]) -> str:
    """Return the error of a failed variable that the expression uses; empty if there is none."""
    return next((why for name, why in variable_errors.items() if f"variables.{name}" in text), "")


def _message(validation: _Validation, seen: Mapping[str, Any]) -> str:
    from herder.engine.schema.cel import CelError

    if validation.message_program is not None:
        try:
            message = validation.message_program.evaluate(seen)
        except CelError:
            message = None
        if (
            isinstance(message, str)
            and message.strip()
            and len(message) <= _MAX_MESSAGE
            and "\n" not in message.strip()
        ):
            return message.strip()
    return validation.message or f"failed expression: {validation.text}"
