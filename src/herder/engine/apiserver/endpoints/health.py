"""Health checks: /healthz, /livez and /readyz. The body is `ok`, or one line per check with `?verbose` or on
failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from herder.engine.wire import Request, Response

Check = Callable[[], bool]

_TEXT = {"content-type": "text/plain; charset=utf-8", "x-content-type-options": "nosniff"}
ENDPOINTS = ("/healthz", "/livez", "/readyz")


def health(request: Request, checks: Mapping[str, Check]) -> Response | None:
    """Return the response for a health path; None if the path names an unknown check."""
    _, endpoint, *rest = request.path.rstrip("/").split("/")
    if rest:
        check = checks.get("/".join(rest))
        if check is None:
            return None
        return _text(200, "ok") if check() else _text(500, "internal server error: check failed\n")
    excluded = set(request.query.all("exclude"))
    results = {name: check() for name, check in checks.items() if name not in excluded}
    healthy = all(results.values())
    if healthy and "verbose" not in request.query:
        return _text(200, "ok")
    lines = [f"[+]{name} ok" if good else f"[-]{name} failed: reason withheld" for name, good in results.items()]
    lines += [f"[+]{name} excluded: ok" for name in checks if name in excluded]
    lines.append(f"{endpoint} check {'passed' if healthy else 'failed'}\n")
    return _text(200 if healthy else 500, "\n".join(lines))


def _text(status: int, body: str) -> Response:
    return Response(status, dict(_TEXT), body.encode())
