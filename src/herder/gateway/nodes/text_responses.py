"""Plain text responses for machines, shown by their install script."""

from __future__ import annotations

import json

from herder.engine.wire import Response

RETRY_SECONDS = "5"


class Refusal(Exception):
    """Refused with this HTTP status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    def response(self) -> Response:
        response = text(self.status, str(self))
        if self.status == 503:
            response.headers["retry-after"] = RETRY_SECONDS
        return response


def text(status: int, content: str, kind: str = "text/plain; charset=utf-8", **headers: str) -> Response:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, {"content-type": kind, "cache-control": "no-store", **fields}, content.encode())


def as_json(value: object) -> Response:
    return text(200, json.dumps(value, indent=2) + "\n", "application/json")
