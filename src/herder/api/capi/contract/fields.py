"""Read fields of provider objects; a value of another type than the contract specifies counts as absent."""

from __future__ import annotations

from typing import Any, NamedTuple

from herder.engine.meta.kinds import Object


class Endpoint(NamedTuple):
    host: str
    port: int

    @property
    def valid(self) -> bool:
        return bool(self.host) and self.port != 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Failure(NamedTuple):
    """A terminal failure as reported by a provider; it is shown to users and has no other effect."""

    reason: str
    message: str


def text(obj: Object, *path: str) -> str:
    value = _at(obj, path)
    return value if isinstance(value, str) else ""


def number(obj: Object, *path: str) -> int | None:
    value = _at(obj, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag(obj: Object, *path: str) -> bool:
    return _at(obj, path) is True


def objects(obj: Object, *path: str) -> list[Object]:
    value = _at(obj, path)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def mapping(obj: Object, *path: str) -> Object:
    value = _at(obj, path)
    return value if isinstance(value, dict) else {}


def endpoint(obj: Object) -> Endpoint:
    path = ("spec", "controlPlaneEndpoint")
    return Endpoint(text(obj, *path, "host"), number(obj, *path, "port") or 0)


def failure(obj: Object) -> Failure:
    return Failure(text(obj, "status", "failureReason"), text(obj, "status", "failureMessage"))


def _at(obj: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(part)
    return obj
