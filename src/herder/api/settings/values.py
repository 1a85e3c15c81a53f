"""Values of settings: parse and check them.

A check returns "" or what is wrong with a value.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from herder.api.durations import MAX_DURATION


def check_duration(text: str) -> str:
    try:
        parse_duration(text)
    except ValueError:
        return "must be a duration such as 30s, 15m, 12h or 7d"
    return ""


def check_commands(text: str) -> str:
    import msgspec

    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        return f"must be a JSON object: {error}"
    if not isinstance(value, dict) or not all(_is_command(item) for item in value.values()):
        return "must be a JSON object that maps image names to commands (lists of strings)"
    return ""


def _is_command(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


def split_patterns(text: str) -> list[str]:
    """Split a comma-separated list of regular expressions."""
    return [part.strip() for part in text.split(",") if part.strip()]


def check_patterns(text: str) -> str:
    for pattern in split_patterns(text):
        try:
            re.compile(pattern)
        except re.error as error:
            return f'"{pattern}" is not a regular expression: {error}'
    return ""


def split_networks(text: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Split a comma-separated list of networks; raise ValueError for an invalid one."""
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]


def check_networks(text: str) -> str:
    try:
        split_networks(text)
    except ValueError as error:
        return f"must be comma-separated IP addresses or networks, such as 10.0.0.0/8: {error}"
    return ""


def check_boolean(text: str) -> str:
    return "" if text in {"true", "false"} else 'must be "true" or "false"'


def check_pull_policy(text: str) -> str:
    return "" if text in {"Always", "IfNotPresent", "Never"} else "must be Always, IfNotPresent or Never"


_URL = re.compile(r"https://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?")


def check_url(text: str) -> str:
    """Reject anything a shell would interpret, because the URL appears in commands that users copy.

    Only https is allowed, because tokens are sent to it.
    """
    return "" if _URL.fullmatch(text) else "must be a URL such as https://herder.example.com or https://10.0.0.1:8443"


def check_minutes(minimum: int) -> Callable[[str], str]:
    def check(text: str) -> str:
        valid = text.isdecimal() and len(text) < 9 and int(text) >= minimum
        return "" if valid else f"must be a number of minutes, at least {minimum}"

    return check


def check_tls_mode(text: str) -> str:
    return "" if text in {"strict", "system-store"} else "must be strict or system-store"


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")


def parse_duration(text: str) -> float:
    """Parse a Go duration (`30s`, `1h30m`), also with days (`7d`), as seconds; clamped to MAX_DURATION."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(text)
    return min(sum(float(number) * _UNITS[unit] for number, unit in parts), MAX_DURATION.total_seconds())
