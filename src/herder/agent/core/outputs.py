"""Encode and decode the values of the plan Secret."""

import base64
import binascii
import calendar
import json
import time
import zlib
from typing import Any, Dict, NamedTuple, Optional

_GZIP = 16 + zlib.MAX_WBITS  # wbits of zlib for gzip
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class PeriodicOutput(NamedTuple):
    name: str
    stdout: Optional[bytes]
    stderr: Optional[bytes]
    exit_code: int
    last_success: str  # Unix dates; empty: never
    failures: int
    last_failure: str


class ProbeStatus(NamedTuple):
    healthy: bool = False
    successes: int = 0
    failures: int = 0


# --- times ---------------------------------------------------------------------------------------------------------


def unix_date(moment: float) -> str:
    """Format as `Sun Nov 15 06:57:24 UTC 2026`."""
    t = time.gmtime(moment)
    day = f"{_DAYS[t.tm_wday]} {_MONTHS[t.tm_mon - 1]} {t.tm_mday:2d}"
    return f"{day} {t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d} UTC {t.tm_year}"


def parse_unix_date(text: str) -> Optional[float]:
    """Parse a Unix date; None if it is invalid. Time zone names are ignored: all are read as UTC."""
    words = text.split()
    try:
        month = _MONTHS.index(words[1]) + 1
        hour, minute, second = (int(each) for each in words[3].split(":"))
        return float(calendar.timegm((int(words[-1]), month, int(words[2]), hour, minute, second, 0, 0, 0)))
    except (IndexError, ValueError):
        return None


# --- one-time and periodic outputs ---------------------------------------------------------------------------------


def pack(value: Any) -> bytes:
    """Encode as gzip(JSON), deterministically, so that equal values compare equal."""
    return _gzipped(compact(value)) if value else _NOTHING


def unpack(packed: bytes) -> Dict[str, Any]:
    """Decode gzip(JSON); empty if missing or invalid."""
    if not packed or packed == _NOTHING:
        return {}
    try:
        value = json.loads(zlib.decompress(packed, _GZIP).decode("utf-8"))
    except (zlib.error, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _gzipped(content: bytes) -> bytes:
    compressor = zlib.compressobj(zlib.Z_BEST_COMPRESSION, zlib.DEFLATED, _GZIP)
    return compressor.compress(content) + compressor.flush()


def compact(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("utf-8")


def to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""


def as_lines(content: bytes) -> bytes:
    """Normalize output: each line, including the last one, ends with a single newline."""
    if not content:
        return b""
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return b"".join((line[:-1] if line.endswith(b"\r") else line) + b"\n" for line in lines)


def periodic_from(packed: bytes) -> Dict[str, PeriodicOutput]:
    found = {}
    for name, each in unpack(packed).items():
        if isinstance(each, dict):
            found[name] = PeriodicOutput(
                name=name,
                stdout=from_base64(each.get("stdout")) or None,
                stderr=None if each.get("stderr") is None else from_base64(each["stderr"]),
                exit_code=_number(each.get("exitCode")),
                last_success=str(each.get("lastSuccessfulRunTime") or ""),
                failures=_number(each.get("failures")),
                last_failure=str(each.get("lastFailedRunTime") or ""),
            )
    return found


def pack_periodic(outputs: Dict[str, PeriodicOutput]) -> bytes:
    return pack(
        {
            name: {
                "name": each.name,
                "stdout": None if each.stdout is None else to_base64(each.stdout),
                "stderr": None if each.stderr is None else to_base64(each.stderr),
                "exitCode": each.exit_code,
                "lastSuccessfulRunTime": each.last_success,
                "failures": each.failures,
                "lastFailedRunTime": each.last_failure,
            }
            for name, each in outputs.items()
        }
    )


_NOTHING = _gzipped(b"{}")  # most plans have no output


# --- probes --------------------------------------------------------------------------------------------------------


def probe_statuses_from(raw: bytes) -> Dict[str, ProbeStatus]:
    try:
        value = json.loads(raw.decode("utf-8")) if raw else {}
    except ValueError:
        value = {}
    found = {}
    for name, each in (value if isinstance(value, dict) else {}).items():
        if isinstance(each, dict):
            found[name] = ProbeStatus(
                healthy=each.get("healthy") is True,
                successes=_number(each.get("successCount")),
                failures=_number(each.get("failureCount")),
            )
    return found


def pack_probe_statuses(statuses: Dict[str, ProbeStatus]) -> bytes:
    """Zero values are omitted."""
    value = {}
    for name, each in sorted(statuses.items()):
        fields = (("healthy", each.healthy), ("successCount", each.successes), ("failureCount", each.failures))
        value[name] = {key: field for key, field in fields if field}
    return json.dumps(value, separators=(",", ":")).encode("utf-8")


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
