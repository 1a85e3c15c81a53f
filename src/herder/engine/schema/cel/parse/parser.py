"""Precedence-climbing parser for the CEL grammar, including optional syntax."""

from __future__ import annotations

from herder.engine.schema.cel.errors import Issue, ParseError
from herder.engine.schema.cel.parse.escaping import RESERVED
from herder.engine.schema.cel.parse.lexer import Token, tokenize
from herder.engine.schema.cel.parse.macros import MacroError, expand_function, expand_method
from herder.engine.schema.cel.parse.syntax import (
    Call,
    Conditional,
    Entry,
    Ident,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    MessageLiteral,
    Node,
    Select,
)
from herder.engine.schema.cel.types import BOOL, BYTES, DOUBLE, INT, NULL, STRING, UINT
from herder.engine.schema.cel.values import INT_MAX, INT_MIN, UINT_MAX, Uint

_MAX_CODE_POINTS = 100_000
_MAX_DEPTH = 250
_MAX_NUMBER_LENGTH = 1000
_RELATION, _SUM, _PRODUCT = 1, 2, 3
_BINARY = {
    "<": _RELATION, "<=": _RELATION, ">=": _RELATION, ">": _RELATION, "==": _RELATION, "!=": _RELATION,
    "in": _RELATION, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT,
}  # fmt: skip
_FUNCTIONS = {operator: f"_{operator}_" for operator in _BINARY} | {"in": "@in"}
_STARTING = frozenset({"[", "{", "(", ".", "true", "false", "null", "int", "uint", "double", "string", "bytes", "name"})
_STARTERS = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)


def parse(text: str) -> Node:
    """Return the syntax tree of an expression; raises ParseError."""
    if len(text) > _MAX_CODE_POINTS:
        size = f"expression code point size exceeds limit: size: {len(text)}, limit {_MAX_CODE_POINTS}"
        raise ParseError(text, [Issue(-1, size)])
    tokens, issues = tokenize(text)
    parser = _Parser(tokens, issues)
    try:
        tree = parser.parse_all()
    except (_Stop, RecursionError) as stop:
        if isinstance(stop, RecursionError):
            issues.append(_too_deep())
        raise ParseError(text, issues) from None
    if issues:
        raise ParseError(text, issues)
    return tree


class _Stop(Exception):
    """Parsing cannot continue; the reason is among the issues."""


def _too_deep() -> Issue:
    return Issue(-1, f"expression recursion limit exceeded: {_MAX_DEPTH}")


class _Parser:
    def __init__(self, tokens: list[Token], issues: list[Issue]) -> None:
        self.tokens = tokens
        self.issues = issues
        self.position = 0
        self.depth = 0
        self.closers: list[str] = []
        """Closing tokens of the open brackets, innermost last."""

    # ---- plumbing

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def take(self) -> Token:
        token = self.tokens[self.position]
        self.position += 1
        return token

    def accept(self, kind: str) -> Token | None:
        return self.take() if self.token.kind == kind else None

    def expect(self, kind: str, expected_text: str) -> Token:
        if self.token.kind == kind:
            return self.take()
        raise self.unexpected(expected_text)

    def close(self) -> None:
        """Expect a closing bracket and report a missing one."""
        closer = self.closers.pop()
        if self.accept(closer):
            return
        token = self.token
        if token.kind == (self.closers[-1] if self.closers else "end"):
            self.issues.append(Issue(token.at, f"Syntax error: missing '{closer}' at '{token.text}'"))
            return
        raise self.unexpected(f"'{closer}'")

    def unexpected(self, expected: str) -> _Stop:
        """Report the current token, as extraneous if the expected one follows it."""
        token = self.token
        following = self.tokens[self.position + 1].text if token.kind != "end" else ""
        verb = "extraneous" if following and expected in (following, f"'{following}'") else "mismatched"
        self.issues.append(Issue(token.at, f"Syntax error: {verb} input '{token.text}' expecting {expected}"))
        return _Stop()

    def add_issue(self, at: int, message: str) -> Node:
        """Record an error that does not stop parsing; returns a null literal in place of the expression."""
        self.issues.append(Issue(at, message))
        return Literal(at, None, NULL)

    # ---- grammar, from the loosest binding to the tightest

    def parse_all(self) -> Node:
        tree = self.expression()
        self.expect("end", "<EOF>")
        return tree

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.issues.append(_too_deep())
            raise _Stop()
        tree = self.logic("||")
        if question := self.accept("?"):
            then = self.logic("||")
            self.expect(":", "':'")
            tree = Conditional(question.at, tree, then, self.expression())
        self.depth -= 1
        return tree

    def logic(self, operator: str) -> Node:
        first = self.logic("&&") if operator == "||" else self.binary(_RELATION)
        if self.token.kind != operator:
            return first
        terms = [first]
        at = self.token.at
        while self.accept(operator):
            terms.append(self.logic("&&") if operator == "||" else self.binary(_RELATION))
        return Logic(at, operator, terms)

    def binary(self, level: int) -> Node:
        left = self.unary()
        while (binding := _BINARY.get(self.token.kind, 0)) >= level:
            operator = self.take()
            right = self.binary(binding + 1)
            left = Call(operator.at, _FUNCTIONS[operator.kind], None, [left, right])
        return left

    def unary(self) -> Node:
        kind = self.token.kind
        if kind not in ("!", "-"):
            return self.member()
        first = self.token
        count = 0
        while self.token.kind == kind:
            if kind == "-" and self.tokens[self.position + 1].kind in ("int", "double"):
                break
            self.take()
            count += 1
        operand = self.member()
        if count % 2 == 0:
            return operand
        return Call(first.at, f"{kind}_", None, [operand])

    def member(self) -> Node:
        node = self.primary()
        while True:
            if dot := self.accept("."):
                node = self.selection(node, dot)
            elif bracket := self.accept("["):
                self.closers.append("]")
                optional = self.accept("?")
                index = self.expression()
                self.close()
                node = Call(bracket.at, "_[?_]" if optional else "_[_]", None, [node, index])
            else:
                return node

    def selection(self, operand: Node, dot: Token) -> Node:
        optional = self.accept("?") is not None
        if self.token.kind == "escaped":
            self.add_issue(self.token.at, "unsupported syntax: '`'")
            self.take()
            return operand
        if self.token.kind != "name":
            self.issues.append(
                Issue(self.token.at, f"Syntax error: no viable alternative at input '.{self.token.text}'")
                if self.token.kind != "end"
                else Issue(
                    self.token.at, "Syntax error: mismatched input '<EOF>' expecting {'?', IDENTIFIER, ESC_IDENTIFIER}"
                )
            )
            raise _Stop()
        name = self.take().text
        if not optional and self.token.kind == "(":
            opening = self.take()
            return self.call(opening.at, name, operand)
        return Select(dot.at, operand, name, optional=optional)

    def call(self, at: int, name: str, target: Node | None) -> Node:
        args = self.arguments()
        try:
            macro = expand_function(at, name, args) if target is None else expand_method(at, name, target, args)
        except MacroError as error:
            return self.add_issue(error.issue.offset, error.issue.message)
        return macro or Call(at, name, target, args)

    def arguments(self) -> list[Node]:
        args: list[Node] = []
        self.closers.append(")")
        if self.token.kind != ")":
            args.append(self.expression())
            while self.accept(","):
                args.append(self.expression())
        self.close()
        return args

    # ---- primaries

    def primary(self) -> Node:
        token = self.take()
        match token.kind:
            case "name":
                return self.named(token, "")
            case ".":
                return self.named(self.expect("name", "IDENTIFIER"), ".")
            case "(":
                self.closers.append(")")
                inner = self.expression()
                self.close()
                return inner
            case "[":
                return self.list_literal(token)
            case "{":
                return MapLiteral(token.at, self.entries(message=False))
            case "string":
                return Literal(token.at, token.value, STRING)
            case "bytes":
                return Literal(token.at, token.value, BYTES)
            case "true" | "false":
                return Literal(token.at, token.kind == "true", BOOL)
            case "null":
                return Literal(token.at, None, NULL)
            case "int" | "uint" | "double":
                return self.number(token, token.at, "")
            case "-" if self.token.kind in ("int", "double"):
                return self.number(self.take(), token.at, "-")
        return self.skip_extraneous(token)

    def skip_extraneous(self, token: Token) -> Node:
        """Handle a token where an expression should start: skip it if one starts right after."""
        if token.kind != "end" and self.token.kind in _STARTING:
            self.issues.append(Issue(token.at, f"Syntax error: extraneous input '{token.text}' expecting {_STARTERS}"))
            return self.primary()
        self.position -= 1
        raise self.unexpected(_STARTERS)

    def number(self, token: Token, at: int, sign: str) -> Node:
        text = token.text
        if token.kind == "double":
            value = float(sign + text)
            if value in (float("inf"), float("-inf")):
                return self.add_issue(at, "invalid double literal")
            return Literal(at, value, DOUBLE)
        digits = text.rstrip("uU")
        if len(digits) > _MAX_NUMBER_LENGTH:
            return self.add_issue(at, f"invalid {token.kind} literal")
        number = int(digits, 16) if digits.startswith("0x") else int(digits)
        if token.kind == "uint":
            return Literal(at, Uint(number), UINT) if number <= UINT_MAX else self.add_issue(at, "invalid uint literal")
        number = -number if sign else number
        return Literal(at, number, INT) if INT_MIN <= number <= INT_MAX else self.add_issue(at, "invalid int literal")

    def named(self, token: Token, dot: str) -> Node:
        """Parse a variable, a call, or a message literal if a brace follows the dotted name."""
        message = self.message_name(token)
        if message is not None:
            opening = self.take()
            return MessageLiteral(opening.at, dot + message, self.entries(message=True))
        if token.text in RESERVED:
            return self.reserved(token)
        if self.token.kind == "(":
            opening = self.take()
            return self.call(opening.at, dot + token.text, None)
        return Ident(token.at, dot + token.text)

    def reserved(self, token: Token) -> Node:
        if self.accept("("):
            self.arguments()
        return self.add_issue(token.at, f"reserved identifier: {token.text}")

    def message_name(self, token: Token) -> str | None:
        position = self.position
        name = token.text
        while self.tokens[position].kind == "." and self.tokens[position + 1].kind == "name":
            name += f".{self.tokens[position + 1].text}"
            position += 2
        if self.tokens[position].kind != "{":
            return None
        self.position = position
        return name

    def list_literal(self, opening: Token) -> Node:
        elements: list[Node] = []
        optionals: set[int] = set()
        self.closers.append("]")
        while self.token.kind != "]":
            if self.accept("?"):
                optionals.add(len(elements))
            elements.append(self.expression())
            if not self.accept(","):
                break
        self.close()
        return ListLiteral(opening.at, elements, optionals)

    def entries(self, *, message: bool) -> list[Entry]:
        entries: list[Entry] = []
        self.closers.append("}")
        while self.token.kind != "}":
            optional = self.accept("?") is not None
            key = self.expect("name", "IDENTIFIER").text if message else self.expression()
            colon = self.expect(":", "':'")
            entries.append(Entry(colon.at, key, self.expression(), optional))
            if not self.accept(","):
                break
        self.close()
        return entries
