"""Result of one check of `herder doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"  # Herder works, with the restriction that the message names
    FAILED = "failed"  # a requirement is missing


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    status: Status
    message: str
    advice: str = ""  # how to fix it

    def as_warning(self) -> Finding:
        """For something that was not requested: its absence is no failure."""
        return replace(self, status=Status.WARNING) if self.status is Status.FAILED else self


def ok(check: str, message: str) -> Finding:
    return Finding(check, Status.OK, message)


def warning(check: str, message: str, advice: str = "") -> Finding:
    return Finding(check, Status.WARNING, message, advice)


def failed(check: str, message: str, advice: str = "") -> Finding:
    return Finding(check, Status.FAILED, message, advice)


def is_fit(findings: Iterable[Finding]) -> bool:
    """Whether no requirement is missing."""
    return all(finding.status is not Status.FAILED for finding in findings)
