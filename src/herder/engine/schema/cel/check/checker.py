"""Type checker: resolves names, overloads and types of an expression."""

from __future__ import annotations

from collections.abc import Mapping

from herder.engine.schema.cel.check.unification import Bindings, assignable, assignable_all, most_general, substitute
from herder.engine.schema.cel.declarations import Functions, Overload
from herder.engine.schema.cel.env import Env
from herder.engine.schema.cel.errors import CheckError, Issue
from herder.engine.schema.cel.messages import message_type
from herder.engine.schema.cel.parse.syntax import (
    Call,
    Conditional,
    Ident,
    ListLiteral,
    Literal,
    Logic,
    Loop,
    MapLiteral,
    MessageLiteral,
    Node,
    Select,
    qualified_name,
)
from herder.engine.schema.cel.types import (
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    DYN,
    ERROR,
    INT,
    IP,
    NULL,
    STRING,
    TIMESTAMP,
    UINT,
    ObjectType,
    Type,
    is_dyn,
    list_of,
    map_of,
    optional_of,
    param,
    type_of,
    unwrap_optional,
)

TYPE_NAMES: dict[str, Type] = {
    "bool": BOOL,
    "bytes": BYTES,
    "double": DOUBLE,
    "int": INT,
    "list": list_of(DYN),
    "map": map_of(DYN, DYN),
    "null_type": NULL,
    "string": STRING,
    "type": Type("type"),
    "uint": UINT,
    "optional_type": optional_of(DYN),
    "google.protobuf.Timestamp": TIMESTAMP,
    "google.protobuf.Duration": DURATION,
    "net.IP": IP,
    "net.CIDR": CIDR,
}
"""Types that can be used as values."""

_T = param("A")
_CONDITIONAL = Overload("_?_:_", (BOOL, _T, _T), _T, lambda *_: None, member=False)


class Checker:
    """Checks one syntax tree; stores types on its nodes and the used variables in `references`."""

    def __init__(self, text: str, env: Env, functions: Functions) -> None:
        self.text = text
        self.env = env
        self.functions = functions
        self.issues: list[Issue] = []
        self.references: set[str] = set()
        self.bindings: Bindings = {}
        self.scopes: list[Mapping[str, Type]] = []
        self.fresh = 0
        self.nodes: list[Node] = []

    def check(self, tree: Node) -> Type:
        """Return the type of the expression; raises CheckError."""
        self.visit(tree)
        for node in self.nodes:
            node.type = substitute(self.bindings, node.type, free_to_dyn=True)
            if isinstance(node, Loop):
                node.var_types = [substitute(self.bindings, type, free_to_dyn=True) for type in node.var_types]
        if self.issues:
            raise CheckError(self.text, self.issues)
        return tree.type

    def visit(self, node: Node) -> Type:
        self.nodes.append(node)
        match node:
            case Literal():
                pass
            case Ident():
                node.type = self.ident(node)
            case Select():
                node.type = self.select(node)
            case Call():
                node.type = self.call(node)
            case Logic():
                node.type = self.logic(node)
            case Conditional():
                node.type = self.conditional(node)
            case ListLiteral():
                node.type = self.list_literal(node)
            case MapLiteral():
                node.type = self.map_literal(node)
            case MessageLiteral():
                node.type = self.message(node)
            case Loop():
                node.type = self.loop(node)
        return node.type

    # ---- names

    def lookup(self, name: str) -> Type | None:
        absolute = name.startswith(".")
        name = name.lstrip(".")
        if not absolute:
            for scope in reversed(self.scopes):
                if name in scope:
                    return scope[name]
        declared = self.env.variables.get(name)
        if declared is not None:
            self.references.add(name)
            return declared
        named = TYPE_NAMES.get(name)
        return None if named is None else type_of(named)

    def ident(self, node: Ident) -> Type:
        type = self.lookup(node.name)
        return self.undeclared(node.at, node.name) if type is None else type

    def undeclared(self, at: int, name: str) -> Type:
        return self.fail(at, f"undeclared reference to '{name}' (in container '')")

    def fail(self, at: int, message: str) -> Type:
        self.issues.append(Issue(at, message))
        return ERROR

    def select(self, node: Select) -> Type:
        if not node.test and not node.optional:
            name = qualified_name(node)
            type = self.lookup(name) if name is not None and "." in name else None
            if type is not None:
                node.resolved = name
                return type
        result = self.field_type(node)
        return BOOL if node.test else substitute(self.bindings, result)

    def field_type(self, node: Select) -> Type:
        operand = substitute(self.bindings, self.visit(node.operand))
        target, was_optional = unwrap_optional(operand)
        result = ERROR
        if target.kind == "map":
            result = target.params[1]
        elif isinstance(target, ObjectType):
            field = target.find(node.field)
            result = self.fail(node.at, f"undefined field '{node.field}'") if field is None else field.type
        elif target.kind == "param":
            self.unify(DYN, target)
            result = DYN
        else:
            if not is_dyn(target):
                self.fail(node.at, f"type '{target}' does not support field selection")
            result = DYN
        return optional_of(result) if was_optional or node.optional else result

    # ---- calls

    def call(self, node: Call) -> Type:
        for arg in node.args:
            self.visit(arg)
        if node.target is not None:
            prefix = qualified_name(node.target)
            qualified = None if prefix is None else f"{prefix}.{node.function}".lstrip(".")
            if qualified in self.functions and not self.shadowed(qualified):
                node.target = None
                node.function = qualified
            else:
                self.visit(node.target)
        name = node.function.lstrip(".")
        overloads = self.functions.get(name)
        if overloads is None:
            return self.undeclared(node.at, name)
        node.function = name
        return self.resolve(node, overloads)

    def shadowed(self, qualified: str) -> bool:
        first = qualified.partition(".")[0]
        return any(first in scope for scope in self.scopes)

    def resolve(self, node: Call, overloads: list[Overload]) -> Type:
        operands = node.args if node.target is None else [node.target, *node.args]
        types = tuple(operand.type for operand in operands)
        result: Type | None = None
        for overload in overloads:
            if overload.member != (node.target is not None) or len(overload.params) != len(types):
                continue
            found = self.try_overload(overload, types)
            if found is None:
                continue
            node.overloads.append(overload)
            if result is None:
                result = found
            elif result.kind != "dyn" and found != result:
                result = DYN
        if result is None:
            return self.no_overload(node.at, node.function, types, member=node.target is not None)
        return result

    def try_overload(self, overload: Overload, types: tuple[Type, ...]) -> Type | None:
        params, result = overload.params, overload.result
        if overload.type_params:
            fresh = {variable: self.fresh_variable() for variable in overload.type_params}
            params = tuple(substitute(fresh, each) for each in params)
            result = substitute(fresh, result)
        bindings = assignable_all(self.bindings, types, params)
        if bindings is None:
            return None
        self.bindings = bindings
        return substitute(self.bindings, result)

    def no_overload(self, at: int, function: str, types: tuple[Type, ...], *, member: bool) -> Type:
        signature_types = [str(substitute(self.bindings, type, free_to_dyn=True)) for type in types]
        signature = (
            f"{signature_types[0]}.({', '.join(signature_types[1:])})" if member else f"({', '.join(signature_types)})"
        )
        return self.fail(at, f"found no matching overload for '{function}' applied to '{signature}'")

    def logic(self, node: Logic) -> Type:
        fine = True
        for term in node.terms:
            self.visit(term)
        for term in node.terms:
            if not self.unify(term.type, BOOL):
                self.mismatch(term.at, BOOL, term.type)
                fine = False
        return BOOL if fine else ERROR

    def conditional(self, node: Conditional) -> Type:
        parts = (node.condition, node.then, node.otherwise)
        types = tuple(self.visit(part) for part in parts)
        return self.conditional_type(node.at, types)

    def conditional_type(self, at: int, types: tuple[Type, ...]) -> Type:
        result = self.try_overload(_CONDITIONAL, types)
        return self.no_overload(at, "_?_:_", types, member=False) if result is None else result

    def unify(self, source: Type, target: Type) -> bool:
        bindings = assignable(self.bindings, source, target)
        if bindings is None:
            return False
        self.bindings = bindings
        return True

    def mismatch(self, at: int, expected: Type, actual: Type) -> Type:
        wanted = substitute(self.bindings, expected, free_to_dyn=True)
        found = substitute(self.bindings, actual, free_to_dyn=True)
        return self.fail(at, f"expected type '{wanted}' but found '{found}'")

    def fresh_variable(self) -> Type:
        self.fresh += 1
        return param(f"_var{self.fresh}")

    # ---- literals

    def list_literal(self, node: ListLiteral) -> Type:
        element: Type | None = None
        for position, item in enumerate(node.elements):
            type = self.visit(item)
            if position in node.optionals:
                type = self.optional_entry(item, type)
            element = self.join(element, type)
        return list_of(element or self.fresh_variable())

    def map_literal(self, node: MapLiteral) -> Type:
        key: Type | None = None
        value: Type | None = None
        for entry in node.entries:
            key = self.join(key, self.visit(entry.key))
            type = self.visit(entry.value)
            value = self.join(value, self.optional_entry(entry.value, type) if entry.optional else type)
        return map_of(key or self.fresh_variable(), value or self.fresh_variable())

    def optional_entry(self, node: Node, type: Type) -> Type:
        inner, was_optional = unwrap_optional(substitute(self.bindings, type))
        if not was_optional and not is_dyn(inner):
            self.mismatch(node.at, optional_of(inner), inner)
        return inner

    def join(self, previous: Type | None, current: Type) -> Type:
        """Return the common type of a literal's elements: dyn if they are mixed (which a validator may reject
        later)."""
        if previous is None:
            return current
        return most_general(previous, current) if self.unify(previous, current) else DYN

    def message(self, node: MessageLiteral) -> Type:
        for field in node.fields:
            self.visit(field.value)
        object_type = message_type(node.name.lstrip(".")) if self.env.json_patch else None
        if object_type is not None:
            return self.construction(node, object_type)
        type = self.lookup(node.name)
        if type is None:
            return self.undeclared(node.at, node.name)
        if type.kind != "type":
            return self.fail(node.at, f"'{type}' is not a type")
        return self.fail(node.at, f"'{type.params[0] if type.params else type}' is not a message type")

    def construction(self, node: MessageLiteral, object_type: ObjectType) -> Type:
        for entry in node.fields:
            field, type = object_type.find(entry.key), entry.value.type
            if entry.optional:
                type = self.optional_entry(entry.value, type)
            if field is None:
                self.fail(entry.at, f"undefined field '{entry.key}'")
            elif not self.unify(type, field.type):
                found = substitute(self.bindings, type, free_to_dyn=True)
                self.fail(
                    entry.at, f"expected type of field '{entry.key}' is '{field.type}' but provided type is '{found}'"
                )
        return object_type

    # ---- macros

    def loop(self, node: Loop) -> Type:
        range_type = substitute(self.bindings, self.visit(node.range))
        if node.macro in ("optMap", "optFlatMap"):
            return self.optional_macro(node, range_type)
        node.var_types = self.variable_types(node, range_type)
        self.scopes.append(dict(zip(node.names, node.var_types, strict=True)))
        types = [self.visit(arg) for arg in node.args]
        self.scopes.pop()
        match node.macro:
            case "all" | "exists":
                if not self.unify(types[0], BOOL):
                    return self.mismatch(node.args[0].at, BOOL, types[0])
                return BOOL
            case "exists_one":
                return self.filtered(node, types[0], INT) and BOOL
            case "filter":
                return self.filtered(node, types[0], list_of(node.var_types[0]))
            case "map" | "transformList":
                return self.mapped(node, types, list_of(types[-1]))
            case "transformMap":
                return self.mapped(node, types, map_of(node.var_types[0], types[-1]))
            case "transformMapEntry":
                return self.entry_mapped(node, types)
        return self.sorted_by(node, range_type, types[0])

    def variable_types(self, node: Loop, range_type: Type) -> list[Type]:
        """Return the types of the loop variables: elements of a list or keys of a map; with two, also the index or
        value."""
        two = len(node.names) == 2
        if range_type.kind == "list":
            return [INT, range_type.params[0]] if two else [range_type.params[0]]
        if range_type.kind == "map":
            return list(range_type.params) if two else [range_type.params[0]]
        if is_dyn(range_type) or range_type.kind == "param":
            self.unify(DYN, range_type)
            return [DYN] * len(node.names)
        message = (
            f"expression of type '{range_type}' cannot be range of a comprehension (must be list, map, or dynamic)"
        )
        self.fail(node.range.at, message)
        return [ERROR] * len(node.names)

    def filtered(self, node: Loop, condition: Type, result: Type) -> Type:
        return self.conditional_type(node.at, (condition, result, result))

    def mapped(self, node: Loop, types: list[Type], result: Type) -> Type:
        return result if len(types) == 1 else self.filtered(node, types[0], result)

    def entry_mapped(self, node: Loop, types: list[Type]) -> Type:
        entry = substitute(self.bindings, types[-1])
        if entry.kind != "map" and not is_dyn(entry):
            target = map_of(DYN, DYN)
            return self.no_overload(node.at, "cel.@mapInsert", (target, entry), member=False)
        return self.mapped(node, types, entry if entry.kind == "map" else map_of(DYN, DYN))

    def sorted_by(self, node: Loop, range_type: Type, key: Type) -> Type:
        from herder.engine.schema.cel.library.lists import COMPARABLE

        key = substitute(self.bindings, key)
        if not is_dyn(key) and key.kind != "param" and key not in COMPARABLE:
            types = (range_type, list_of(key))
            return self.no_overload(node.at, "@sortByAssociatedKeys", types, member=True)
        return range_type if range_type.kind == "list" else list_of(DYN)

    def optional_macro(self, node: Loop, range_type: Type) -> Type:
        inner, was_optional = unwrap_optional(range_type)
        if not was_optional and not is_dyn(range_type):
            return self.no_overload(node.at, "hasValue", (range_type,), member=True)
        node.var_types = [inner if was_optional else DYN]
        self.scopes.append({node.names[0]: node.var_types[0]})
        result = self.visit(node.args[0])
        self.scopes.pop()
        if node.macro == "optMap":
            return optional_of(result)
        result = substitute(self.bindings, result)
        if not unwrap_optional(result)[1] and not is_dyn(result):
            none = optional_of(DYN)
            return self.no_overload(node.at, "_?_:_", (BOOL, result, none), member=False)
        return result if unwrap_optional(result)[1] else optional_of(DYN)
