"""One ValidatingAdmissionPolicy, compiled: its variables, conditions and validations, and what they say of a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from herder.engine.apiserver.admission.conditions import ConditionError, Conditions
from herder.engine.apiserver.admission.matching import Criteria
from herder.engine.meta.kinds import Object

if TYPE_CHECKING:
    from herder.engine.schema.cel import Env, Program

_LONGEST_MESSAGE = 5 << 10


@dataclass(frozen=True, slots=True)
class Denial:
    message: str
    reason: str = "Invalid"


@dataclass(frozen=True, slots=True)
class _Validation:
    text: str
    program: Program
    message: str
    message_program: Program | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Compiled:
    variables: tuple[tuple[str, Program], ...]
    conditions: Conditions
    validations: tuple[_Validation, ...]


def criteria_of(resources: Object | None, *, everything_without_rules: bool) -> Criteria:
    """The matchConstraints of a policy, or the matchResources of a binding."""
    given = resources or {}
    return Criteria(
        rules=given.get("resourceRules"),
        excluded=given.get("excludeResourceRules"),
        namespace_selector=given.get("namespaceSelector"),
        object_selector=given.get("objectSelector"),
        match_policy=given.get("matchPolicy") or "Equivalent",
        everything_without_rules=everything_without_rules,
    )


class Policy:
    def __init__(self, policy: Object) -> None:
        spec = policy.get("spec") or {}
        self.name = str(policy["metadata"]["name"])
        self.param_kind: Object | None = spec.get("paramKind")
        self.criteria = criteria_of(spec.get("matchConstraints"), everything_without_rules=False)
        self.ignores_failures = spec.get("failurePolicy") == "Ignore"
        self._spec = spec
        self._compiled: _Compiled | str | None = None  # what was made of it, or why that failed

    def denials(self, bindings: Mapping[str, Any], params: Object | None) -> list[Denial]:
        """Why a write is to be denied. What could not be evaluated counts, unless the policy ignores failures."""
        if self._compiled is None:
            self._compiled = self._compile()
        if isinstance(self._compiled, str):
            return self._failures([self._compiled])
        compiled = self._compiled
        seen = dict(bindings)
        if self.param_kind is not None:
            seen["params"] = params
        broken = bind_variables(compiled.variables, seen)
        try:
            if not compiled.conditions.hold(seen):
                return []
        except ConditionError as error:
            return self._failures([str(error)])
        return self._judge(compiled, seen, broken)

    def _judge(self, compiled: _Compiled, seen: Mapping[str, Any], broken: Mapping[str, str]) -> list[Denial]:
        from herder.engine.schema.cel import CelError

        denials: list[Denial] = []
        for validation in compiled.validations:
            try:
                if validation.program.evaluate(seen) is not True:
                    denials.append(Denial(_message(validation, seen), validation.reason))
            except CelError as error:
                why = blamed_variable(validation.text, broken) or str(error)
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
    """A policy's variables, each of which sees those before it, and what its other expressions see."""
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
    """Bind `variables`; one that fails matters only to expressions that use it, so its error is kept for them."""
    from herder.engine.schema.cel import CelError

    values: dict[str, Any] = {}
    broken: dict[str, str] = {}
    seen["variables"] = values
    for name, program in variables:
        try:
            values[name] = program.evaluate(seen)
        except CelError as error:
            broken[name] = (
                f'composited variable "{name}" fails to evaluate: {blamed_variable(program.text, broken) or error}'
            )
    return broken


def blamed_variable(text: str, broken: Mapping[str, str]) -> str:
    return next((why for name, why in broken.items() if f"variables.{name}" in text), "")


def _message(validation: _Validation, seen: Mapping[str, Any]) -> str:
    from herder.engine.schema.cel import CelError

    if validation.message_program is not None:
        try:
            made = validation.message_program.evaluate(seen)
        except CelError:
            made = None
        if isinstance(made, str) and made.strip() and len(made) <= _LONGEST_MESSAGE and "\n" not in made.strip():
            return made.strip()
    return validation.message or f"failed expression: {validation.text}"
