"""Type unification: assignability, with type variables bound on the way."""

from __future__ import annotations

from herder.engine.schema.cel.types import DYN, Type, is_dyn

Bindings = dict[Type, Type]
_NULLABLE = frozenset({"opaque", "object", "duration", "timestamp", "null_type"})
_COMPOSED = frozenset({"opaque", "list", "map", "type"})


def assignable(bindings: Bindings, source: Type, target: Type) -> Bindings | None:
    """Return the bindings extended so that `source` is assignable to `target`, or None if it is not."""
    return assignable_all(bindings, (source,), (target,))


def assignable_all(bindings: Bindings, sources: tuple[Type, ...], targets: tuple[Type, ...]) -> Bindings | None:
    attempt = dict(bindings)
    return attempt if _fit_all(attempt, sources, targets) else None


def _fit_all(bindings: Bindings, sources: tuple[Type, ...], targets: tuple[Type, ...]) -> bool:
    return len(sources) == len(targets) and all(
        _fit(bindings, source, target) for source, target in zip(sources, targets, strict=True)
    )


def _fit(bindings: Bindings, source: Type, target: Type) -> bool:
    if target.kind == "param":
        fits, bound = _bind(bindings, source, target)
        if fits or bound:
            return fits
    if source.kind == "param":
        return _bind(bindings, target, source)[0]
    if is_dyn(source) or is_dyn(target):
        return True
    if source.kind == "null_type":
        return target.kind in _NULLABLE
    if target.kind == "null_type":
        return source.kind in _NULLABLE
    if source.kind != target.kind:
        return False
    if source.kind == "type":
        return True
    if source.name != target.name:
        return False
    return _fit_all(bindings, source.params, target.params)


def _bind(bindings: Bindings, type: Type, variable: Type) -> tuple[bool, bool]:
    """Return whether `type` is compatible with `variable`, and whether the variable was bound before."""
    if type == variable:
        return True, True
    known = bindings.get(variable)
    if known is None:
        if _occurs(bindings, variable, type):
            return False, False
        bindings[variable] = type
        return True, False
    if type == known:
        return True, True
    if not _fit(bindings, type, known):
        return False, True
    general = most_general(type, known)
    if not _occurs(bindings, variable, general):
        bindings[variable] = general
    return True, True


def _occurs(bindings: Bindings, variable: Type, within: Type) -> bool:
    if variable == within:
        return True
    if within.kind == "param":
        known = bindings.get(within)
        return known is not None and _occurs(bindings, variable, known)
    return any(_occurs(bindings, variable, inner) for inner in within.params)


def most_general(left: Type, right: Type) -> Type:
    return left if _less_specific(left, right) else right


def _less_specific(left: Type, right: Type) -> bool:
    if left.kind in ("dyn", "param"):
        return True
    if right.kind in ("dyn", "param"):
        return False
    if left.kind != right.kind:
        return False
    if left.kind == "type":
        return True
    if left.name != right.name or len(left.params) != len(right.params):
        return False
    return all(map(_less_specific, left.params, right.params))


def substitute(bindings: Bindings, type: Type, *, free_to_dyn: bool = False) -> Type:
    """Replace all bound variables in a type; return the same object if there are none."""
    if type.kind == "param":
        known = bindings.get(type)
        if known is not None:
            return substitute(bindings, known, free_to_dyn=free_to_dyn)
        return DYN if free_to_dyn else type
    if not type.params or type.kind not in _COMPOSED:
        return type
    params = tuple(substitute(bindings, inner, free_to_dyn=free_to_dyn) for inner in type.params)
    if all(new is old for new, old in zip(params, type.params, strict=True)):
        return type
    return Type(
        type.kind,
        type.name,
        params,
        max_elements=type.max_elements,
        min_size=type.min_size,
        list_type=type.list_type,
        list_keys=type.list_keys,
    )
