"""The responses of two servers to one request, and whether they are equal."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tests.fuzz.wire import Reply

NO_RESPONSE = "no response"  # the reason of an outcome without a response


@dataclass(frozen=True)
class Outcome:
    code: int
    reason: str
    fields: tuple[tuple[str, str], ...] = ()  # reason and field of every cause, sorted
    message: str = ""

    @property
    def short(self) -> str:
        return f"{self.code} {self.reason}".strip()

    @property
    def refused(self) -> bool:
        return self.code >= 400

    @property
    def failed(self) -> bool:
        """Whether the server reports a fault of its own."""
        return self.code >= 500 or self.reason == NO_RESPONSE


def outcome_of(reply: Reply) -> Outcome:
    if reply.code < 300:
        return Outcome(reply.code, "")
    try:
        status = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        return Outcome(reply.code, "", message=reply.body[:300].decode("utf-8", "replace"))
    if not isinstance(status, dict):
        return Outcome(reply.code, "", message=str(status)[:300])
    causes = (status.get("details") or {}).get("causes") or []
    fields = sorted({(cause.get("reason", ""), cause.get("field", "")) for cause in causes})
    return Outcome(reply.code, str(status.get("reason", "")), tuple(fields), str(status.get("message", "")))


def same_code_and_reason(real: Outcome, embedded: Outcome) -> bool:
    return real.code == embedded.code and real.reason == embedded.reason


def same_fields(real: Outcome, embedded: Outcome) -> bool:
    return real.fields == embedded.fields
