"""Expiry of the certificates on a machine, as reported by a periodic instruction of its plan.

The report is copied to an annotation of the Machine, because plan Secrets contain keys that few users may read. Nodes
control the report: everything is bounded, and malformed lines are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from herder.api.capi.names import annotations_of
from herder.api.rke.names import CERTIFICATES
from herder.engine.meta.kinds import Object

CERTIFICATES_VALID = "CertificatesValid"  # condition of the RKEControlPlane
EXPIRING, EXPIRED, NOT_REPORTED = "CertificatesExpiring", "CertificateExpired", "NotReported"  # its reasons

EXPIRY_WARNING = timedelta(days=30)
"""How long before its expiry a certificate is reported."""

MAX_CERTIFICATES = 64
MAX_REPORT_BYTES = 32 << 10
_MAX_ANNOTATION = 48 << 10
_PATH = re.compile(r"/[ -~]{0,199}")
_LINE = re.compile(rf"certificate ([0-9A-F]{{2,64}}) (\d{{14}})Z ({_PATH.pattern})")
_AUTHORITY = re.compile(r"(.*[/-])?ca(\.nochain)?\.crt")
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_YEARS = range(1950, 9000)  # so that no arithmetic with times overflows


class NodeCertificate(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """A certificate on a machine. The first one expires first."""

    not_after: str  # RFC 3339, UTC
    path: str
    serial: str  # hexadecimal

    @property
    def expires(self) -> datetime:
        return datetime.strptime(self.not_after, _TIME).replace(tzinfo=UTC)

    @property
    def is_authority(self) -> bool:
        """By its file name, which the distribution determines."""
        return _AUTHORITY.fullmatch(self.path) is not None


def parse_report(output: bytes) -> tuple[NodeCertificate, ...]:
    """Parse the output of the instruction, which has one certificate per line: serial, last day and path."""
    found: dict[str, NodeCertificate] = {}
    for line in output[:MAX_REPORT_BYTES].decode("ascii", errors="replace").split("\n")[:MAX_CERTIFICATES]:
        match = _LINE.fullmatch(line)
        expires = _parse_digits(match[2]) if match else None
        if match is not None and expires is not None:
            found[match[3]] = NodeCertificate(expires.strftime(_TIME), match[3], match[1])
    return tuple(sorted(found.values()))


def _parse_digits(digits: str) -> datetime | None:
    year, *parts = int(digits[:4]), *(int(digits[start : start + 2]) for start in range(4, 14, 2))
    month, day, hour, minute, second = parts
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC) if year in _YEARS else None
    except ValueError:
        return None


# --- annotation of the Machine ----------------------------------------------------------------------------------------


def to_annotation(certificates: Sequence[NodeCertificate]) -> str:
    return msgspec.json.encode(certificates).decode()


def certificates_of(machine: Object) -> tuple[NodeCertificate, ...]:
    """The certificates of a Machine, the first to expire first; none if there is no valid report.

    Conditions and Events name the path, and users can change the annotation.
    """
    text = annotations_of(machine).get(CERTIFICATES, "")
    if not text or len(text) > _MAX_ANNOTATION:
        return ()
    try:
        found = msgspec.json.decode(text, type=tuple[NodeCertificate, ...])
        valid = [
            each for each in found[:MAX_CERTIFICATES] if each.expires.year in _YEARS and _PATH.fullmatch(each.path)
        ]
    except (ValueError, RecursionError):
        return ()
    return tuple(sorted(valid))
