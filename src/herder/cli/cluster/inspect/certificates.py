"""Certificates on the machines of a cluster that expire soon, as lines of text or as data. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from herder.api.rke.node.certificates import EXPIRY_WARNING, NodeCertificate, certificates_of
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable

HEADINGS = ("MACHINE", "CERTIFICATE", "EXPIRES", "IN")
MAX_SHOWN = 20

MachineCertificate = tuple[NodeCertificate, str]
"""A certificate and its Machine."""


def expiring_certificates(machines: Iterable[Object], now: datetime) -> list[MachineCertificate]:
    """Those that have expired or expire within 30 days, else the first one to expire."""
    found = sorted(
        (each, str(machine["metadata"]["name"])) for machine in machines for each in certificates_of(machine)
    )
    soon = [each for each in found if each[0].expires <= now + EXPIRY_WARNING]
    return soon or found[:1]


def certificate_lines(found: Sequence[MachineCertificate], now: datetime) -> list[str]:
    if not found:
        return []
    first, machine = found[0]
    if first.expires > now + EXPIRY_WARNING:
        when = f"{first.not_after}, in {_days(first, now)}"
        return [printable(f"The first certificate expires at {when}: {first.path} of machine {machine}")]
    shown = ((name, each.path, each.not_after, _days(each, now)) for each, name in found[:MAX_SHOWN])
    rows = [tuple(map(printable, row)) for row in (HEADINGS, *shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    hidden = len(found) - MAX_SHOWN
    return lines + ([f"... and {hidden} more; show all with -o json"] if hidden > 0 else [])


def certificates_as_data(found: Iterable[MachineCertificate]) -> list[Object]:
    return [
        {
            "machine": machine,
            "path": each.path,
            "serial": each.serial,
            "notAfter": each.not_after,
            "authority": each.is_authority,
        }
        for each, machine in found
    ]


def _days(certificate: NodeCertificate, now: datetime) -> str:
    left = (certificate.expires - now).total_seconds()
    return "expired" if left <= 0 else f"{left / 86400:.0f}d" if left >= 86400 else f"{left / 3600:.0f}h"
