"""Where the two servers answer bad input differently, and why that is right, or does no harm.

Each entry tells by request and answers whether it is the one; what no entry explains is a disagreement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.comparing import Outcome
from tests.fuzz.wire import Input


@dataclass(frozen=True)
class Difference:
    name: str
    why: str
    applies: Callable[[Input, Outcome, Outcome], bool]


def explained(request: Input, real: Outcome, embedded: Outcome) -> str:
    """The name of the entry that explains why the verdicts differ, or nothing."""
    return next((entry.name for entry in DIFFERENCES if entry.applies(request, real, embedded)), "")


def _real_fails(_: Input, real: Outcome, embedded: Outcome) -> bool:
    return real.failed and not embedded.failed


def _without_status(_: Input, real: Outcome, embedded: Outcome) -> bool:
    return real.code == embedded.code and real.code in (400, 413, 417, 431) and not real.reason


def _unreadable_path(request: Input, real: Outcome, embedded: Outcome) -> bool:
    return embedded.code == 400 and embedded.message.startswith("invalid URL") and real.code in (400, 403, 404, 405)


DIFFERENCES = [
    Difference(
        "real server fails",
        "The real server answers some bad input with a 500, or drops the connection after a panic (protobuf for a "
        "custom kind, resource versions that are no numbers, applied values that do not convert). The embedded "
        "server says what is wrong with the input, with a 4xx.",
        _real_fails,
    ),
    Difference(
        "no Status",
        "Same code; the real server's HTTP library answers in plain text before the API sees the request, the "
        "embedded server with a Status that has the reason.",
        _without_status,
    ),
    Difference(
        "unreadable path",
        "A path with a NUL or with bytes that are no UTF-8 is refused with 400; the real server looks for an object "
        "of that name, which cannot exist.",
        _unreadable_path,
    ),
]
