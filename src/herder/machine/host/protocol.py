"""Wire protocol of the daemon: a request is one JSON line; the response is `say` lines and one `done` or
`error` line.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from herder.machine.errors import MachineError, PreCreateFailed, ServerGone, Unreachable
from herder.machine.host.kinds import Ask, Place

LONGEST_REQUEST = 8 * 1024 * 1024
OWNER = ("", "*")  # subject of the daemon itself; no machine can have this name

ON_MACHINES = frozenset({"check", "create", "start", "stop", "restart", "kill", "state", "place", "remove"})
ON_DAEMON = frozenset({"list", "purge", "version", "shutdown"})

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.-]{0,252}")
_SCOPE = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?")
_HOSTNAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]{0,62})")
_TOKEN = re.compile(r"[a-zA-Z0-9-]{8,128}")
_PUBLIC_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\r\n]*)?")

_ERRORS: dict[str, type[MachineError]] = {
    error.__name__: error for error in (MachineError, PreCreateFailed, ServerGone, Unreachable)
}


class BadRequest(MachineError):
    """The request is invalid."""


@dataclass(frozen=True, slots=True)
class Request:
    verb: str
    scope: str = ""
    name: str = ""
    kind: str = ""
    token: str = ""
    credential: str = field(default="", repr=False)
    options: dict[str, Any] = field(default_factory=dict)
    ask: Ask = field(default_factory=lambda: Ask(hostname="", authorized_key=""), repr=False)

    @property
    def subject(self) -> tuple[str, str]:
        """The subject whose credential is required."""
        return OWNER if self.verb in ON_DAEMON else (self.scope, self.name)


def parse(line: bytes) -> Request:
    try:
        said = json.loads(line)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise BadRequest("the request is not a JSON object in one line")
    verb = _text(said, "verb")
    if verb in ON_DAEMON:
        return Request(verb=verb, credential=_text(said, "credential"))
    if verb not in ON_MACHINES:
        raise BadRequest(f'verb: "{verb[:40]}" is none of {", ".join(sorted(ON_MACHINES | ON_DAEMON))}')
    options = said.get("options") or {}
    if not isinstance(options, dict):
        raise BadRequest("options: must be an object")
    name = _text(said, "name", _NAME)
    return Request(
        verb=verb,
        scope=_text(said, "scope", _SCOPE),
        name=name,
        kind=_text(said, "kind"),
        token=_text(said, "token", _TOKEN) if verb != "check" else "",
        credential=_text(said, "credential"),
        options=options,
        ask=_ask(said, name) if verb == "create" else Ask(hostname="", authorized_key=""),
    )


def _ask(said: dict[str, Any], name: str) -> Ask:
    return Ask(
        hostname=_text({"hostname": said.get("hostname") or name[:63]}, "hostname", _HOSTNAME),
        authorized_key=_text(
            {"authorized_key": str(said.get("authorized_key", "")).strip()}, "authorized_key", _PUBLIC_KEY
        ),
        script=_bytes(said, "script"),
        user_data=_bytes(said, "user_data"),
    )


def _text(said: dict[str, Any], key: str, form: re.Pattern[str] | None = None) -> str:
    value = said.get(key, "")
    if not isinstance(value, str):
        raise BadRequest(f"{key}: must be a string")
    if form is not None and not form.fullmatch(value):
        raise BadRequest(f'{key}: "{value[:80]}" does not have the form {form.pattern}')
    return value


def _bytes(said: dict[str, Any], key: str) -> bytes:
    try:
        return base64.b64decode(_text(said, key), validate=True)
    except binascii.Error:
        raise BadRequest(f"{key}: must be base64") from None


def asking(verb: str, subject: tuple[str, str], credential: str, **others: Any) -> bytes:
    """Encode a request, as `parse` reads it."""
    scope, name = subject
    said = {"verb": verb, "scope": scope, "name": name, "credential": credential} | others
    ask = said.pop("ask", None)
    if ask is not None:
        said |= asdict(ask)
        said |= {key: base64.b64encode(said[key]).decode() for key in ("script", "user_data")}
    return json.dumps(said).encode() + b"\n"


def answer(**said: Any) -> bytes:
    return json.dumps(said).encode() + b"\n"


def error_answer(error: MachineError) -> bytes:
    kind = next(name for name in (base.__name__ for base in type(error).__mro__) if name in _ERRORS)
    return answer(error={"type": kind, "message": error.message, "advice": error.advice})


def error_of(status: dict[str, Any]) -> MachineError:
    return _ERRORS.get(status.get("type", ""), MachineError)(status.get("message", ""), status.get("advice", ""))


def place_as_json(place: Place) -> dict[str, Any]:
    return asdict(place)


def place_of(status: dict[str, Any]) -> Place:
    return Place(**status)
