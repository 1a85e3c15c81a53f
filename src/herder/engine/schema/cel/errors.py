"""What can go wrong with an expression: it does not parse, does not type-check, or fails while it runs.

Compile errors are rendered the way users know them from the real server (`ERROR: <input>:1:5: …` with the source
line and a caret), because they are copied verbatim into the message of the refused CustomResourceDefinition or policy.
"""

from __future__ import annotations

from dataclasses import dataclass

_MAX_REPORTED = 100


class CelError(Exception):
    """Base of every error of this package."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One complaint about one place of the source; `offset` counts code points, -1 when no place is to blame."""

    offset: int
    message: str


class CompileError(CelError):
    """The text is no valid expression of its environment. `str()` gives all issues, rendered over the source."""

    def __init__(self, source: str, issues: list[Issue]) -> None:
        self.source = source
        self.issues = sorted(issues, key=lambda issue: issue.offset)
        super().__init__(render(source, self.issues))


class ParseError(CompileError):
    """The text breaks the grammar."""


class CheckError(CompileError):
    """The text parses, but names or types do not fit the environment."""


class EvaluationError(CelError):
    """The expression failed on these values: missing key, overflow, wrong dynamic type…"""

    cost = 0
    """Steps taken until it failed, where the caller shares a budget."""


class BudgetExceeded(CelError):
    """The expression took more steps than it was given. No EvaluationError, for no `||` may absorb it."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


def no_such_overload() -> EvaluationError:
    return EvaluationError("no such overload")


def no_such_key(key: object) -> EvaluationError:
    return EvaluationError(f"no such key: {key}")


def render(source: str, issues: list[Issue]) -> str:
    shown = [_render_issue(source, issue) for issue in issues[:_MAX_REPORTED]]
    if len(issues) > _MAX_REPORTED:
        shown.append(f"{len(issues) - _MAX_REPORTED} more errors were truncated")
    return "\n".join(shown)


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
    """Dots up to the column, then a caret, both full-width below characters that are not ASCII."""
    dots = "".join("." if char < "\x80" else "\uff0e" for char in line[:column])
    at_wide = column < len(line) and line[column] >= "\x80"
    return dots + ("\uff3e" if at_wide else "^")
