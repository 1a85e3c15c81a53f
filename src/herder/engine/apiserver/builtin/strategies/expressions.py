"""Compile the CEL expressions of webhook configurations and admission policies to validate them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from herder.engine.apiserver.builtin.strategies.checks import Errors
from herder.engine.meta.errors import invalid_value, not_supported, required
from herder.engine.meta.kinds import Object

if TYPE_CHECKING:
    from herder.engine.schema.cel import Env, Type

# By patch type: the field with the expression, and its required result type.
_RESULTS = {"ApplyConfiguration": ("applyConfiguration", "Object"), "JSONPatch": ("jsonPatch", "list(JSONPatch)")}


def condition(text: str, path: str, *, params: bool = False) -> Errors:
    """Validate one matchConditions expression. It sees the request, and the parameters of the policy if it has any."""
    from herder.engine.schema.cel import CelError, admission_env, compile

    try:
        kind = compile(text, admission_env(params=params)).result_type
    except CelError as error:
        yield invalid_value(path, text, f"compilation failed: {error}")
        return
    if kind.kind != "bool":
        yield invalid_value(path, text, f"must evaluate to bool but got {kind}")


def policy(spec: Object) -> Errors:
    """Validate variables in order, each of which sees those before it, and then validations or mutations, which see
    all."""
    from herder.engine.schema.cel import CelError, admission_env, compile

    params = spec.get("paramKind") is not None
    types: dict[str, Type] = {}
    for position, variable in enumerate(spec.get("variables") or ()):
        text, at = str(variable.get("expression") or ""), f"spec.variables[{position}].expression"
        try:
            types[str(variable.get("name") or "")] = compile(
                text, admission_env(params=params, variables=types)
            ).result_type
        except CelError as error:
            yield invalid_value(at, text, f"compilation failed: {error}")
    env = admission_env(params=params, variables=types)
    for position, validation in enumerate(spec.get("validations") or ()):
        text, at = str(validation.get("expression") or "").strip(), f"spec.validations[{position}].expression"
        if not text:
            yield required(at, "expression is not specified")
            continue
        try:
            kind = compile(text, env).result_type
        except CelError as error:
            yield invalid_value(at, validation["expression"], f"compilation failed: {error}")
            continue
        if kind.kind != "bool":
            yield invalid_value(at, validation["expression"], "must evaluate to bool")
    for position, mutation in enumerate(spec.get("mutations") or ()):
        yield from _mutation(mutation, f"spec.mutations[{position}]", replace(env, json_patch=True))


def _mutation(mutation: Object, path: str, env: Env) -> Errors:
    from herder.engine.schema.cel import CelError, compile

    kind = mutation.get("patchType") or ""
    if kind not in _RESULTS:
        yield not_supported(f"{path}.patchType", kind, sorted(_RESULTS)) if kind else required(f"{path}.patchType")
        return
    field, wanted = _RESULTS[kind]
    if not mutation.get(field):
        yield required(f"{path}.{field}", f"must be specified when patchType is {kind}")
        return
    text, at = str(mutation[field].get("expression") or "").strip(), f"{path}.{field}.expression"
    if not text:
        yield required(at, "expression is not specified")
        return
    try:
        found = compile(text, env).result_type
    except CelError as error:
        yield invalid_value(at, text, f"compilation failed: {error}")
        return
    if str(found) != wanted:
        yield invalid_value(at, text, f"must evaluate to {wanted} but got {found}")
