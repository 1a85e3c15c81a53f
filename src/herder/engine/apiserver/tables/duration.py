"""Durations and ages in kubectl's format: at most two units, fewer for longer durations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

UNKNOWN = "<unknown>"
INVALID = "<invalid>"


def human_duration(seconds: float) -> str:
    """Format as 119s, 5m30s, 10m, 3h5m, 2d4h, 8d or 2y1d. Up to a second in the future is 0s, because clocks differ."""
    total = int(seconds)
    if total < -1:
        return INVALID
    if total < 0:
        return "0s"
    if total < 120:
        return f"{total}s"
    minutes, hours = total // 60, total // 3600
    if minutes < 10:
        return _two(minutes, "m", total % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 24 * 8:
        return _two(hours // 24, "d", hours % 24, "h")
    if hours < 24 * 365 * 2:
        return f"{hours // 24}d"
    if hours < 24 * 365 * 8:
        return _two(hours // 24 // 365, "y", hours // 24 % 365, "d")
    return f"{hours // 24 // 365}y"


def _two(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big}{big_unit}{small}{small_unit}" if small else f"{big}{big_unit}"


def since(timestamp: Any, now: datetime) -> str:
    """Return the time since a timestamp; `<unknown>` without one."""
    if not timestamp:
        return UNKNOWN
    moment = parse_time(timestamp)
    return human_duration((now - moment).total_seconds()) if moment else INVALID


def age(obj: dict[str, Any], now: datetime) -> str:
    return since((obj.get("metadata") or {}).get("creationTimestamp"), now)


def parse_time(text: Any) -> datetime | None:
    """Parse an RFC 3339 time with zone; None if it is not one."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo else None
