"""CEL errors: parse errors, type-check errors and evaluation errors.

Compile errors are rendered as in kube-apiserver (`ERROR: <input>:1:5: …` with the source line and a caret), because
they are copied into the message of the rejected CustomResourceDefinition or policy.
"""

from __future__ import annotations

from dataclasses import dataclass

_MAX_REPORTED = 100


class CelError(Exception):
    """Base class of all CEL errors."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One error at one place of the source; `offset` counts code points, -1 if it has no place."""

    offset: int
    message: str


class CompileError(CelError):
    """The text is not a valid expression in its environment. `str()` renders all issues with the source."""

    def __init__(self, source: str, issues: list[Issue]) -> None:
        self.source = source
        self.issues = sorted(issues, key=lambda issue: issue.offset)
        super().__init__(render(source, self.issues))


class ParseError(CompileError):
    """The text violates the grammar."""


class CheckError(CompileError):
    """The text parses, but names or types do not match the environment."""


class EvaluationError(CelError):
    """The expression failed on these values: missing key, overflow, wrong dynamic type…"""

    cost = 0
    """Steps taken until it failed, where the caller shares a budget."""


class BudgetExceeded(CelError):
    """The expression exceeded its step budget. Not an EvaluationError, because `||` must not absorb it."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


def no_such_overload() -> EvaluationError:
    return EvaluationError("no such overload")


def no_such_key(key: object) -> EvaluationError:
    return EvaluationError(f"no such key: {key}")


def render(source: str, issues: list[Issue]) -> str:
    rendered = [_render_issue(source, issue) for issue in issues[:_MAX_REPORTED]]
    if len(issues) > _MAX_REPORTED:
        rendered.append(f"{len(issues) - _MAX_REPORTED} more errors were truncated")
    return "\n".join(rendered)


def _render_issue(source: str, issue: Issue) -> str:
    if issue.offset < 0:
        return f"ERROR: <input>:-1:0: {issue.message}"
    before = source[: issue.offset]
    line_number = before.count("\n") + 1
    column = issue.offset - (before.rfind("\n") + 1)
    line = source.split("\n")[line_number - 1].replace("\t", " ")
    head = f"ERROR: <input>:{line_number}:{column + 1}: {issue.message}"
    return f"{head}\n | {line}\n | {_pointer(line, column)}"


def _pointer(line: str, column: int) -> str:
    """Return dots up to the column and a caret, both full-width below non-ASCII characters."""
    dots = "".join("." if char < "\x80" else "\uff0e" for char in line[:column])
    at_wide = column < len(line) and line[column] >= "\x80"
    return dots + ("\uff3e" if at_wide else "^")
