"""Certificates in `herder describe cluster`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from herder.api.capi.kinds import MACHINE
from herder.api.rke.names import CERTIFICATES
from herder.api.rke.node.certificates import NodeCertificate, to_annotation
from herder.cli.cluster.inspect.certificates import (
    MAX_SHOWN,
    certificate_lines,
    certificates_as_data,
    expiring_certificates,
)
from tests.support.builders import new_object

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


def certificate(path: str, left: timedelta) -> NodeCertificate:
    return NodeCertificate((NOW + left).strftime("%Y-%m-%dT%H:%M:%SZ"), path, "0A")


def machine(name: str, *certificates: NodeCertificate) -> Any:
    return new_object(MACHINE, name, metadata={"annotations": {CERTIFICATES: to_annotation(certificates)}})


def lines(*machines: Any) -> list[str]:
    return certificate_lines(expiring_certificates(machines, NOW), NOW)


def test_the_first_to_expire_is_shown_if_there_is_time() -> None:
    later = machine("a", certificate("/late.crt", timedelta(days=300)))
    assert lines(later, machine("b", certificate("/first.crt", timedelta(days=31))), machine("c")) == [
        "The first certificate expires at 2026-12-19T12:00:00Z, in 31d: /first.crt of machine b"
    ]
    assert lines(machine("a")) == []


def test_all_that_expire_soon_are_listed() -> None:
    certificates = [
        certificate("/server-ca.crt", timedelta(days=30)),
        certificate("/now.crt", timedelta(hours=5)),
        certificate("/late.crt", timedelta(days=31)),
        certificate("/gone.crt", -timedelta(days=1)),
    ]
    assert lines(machine("server", *certificates)) == [
        "MACHINE  CERTIFICATE     EXPIRES               IN",
        "server   /gone.crt       2026-11-17T12:00:00Z  expired",
        "server   /now.crt        2026-11-18T17:00:00Z  5h",
        "server   /server-ca.crt  2026-12-18T12:00:00Z  30d",
    ]
    found = certificates_as_data(expiring_certificates([machine("server", *certificates)], NOW))
    assert [each["path"] for each in found] == ["/gone.crt", "/now.crt", "/server-ca.crt"]
    assert found[2] == {
        "machine": "server", "path": "/server-ca.crt", "serial": "0A", "notAfter": "2026-12-18T12:00:00Z",
        "authority": True,
    }  # fmt: skip


def test_long_lists_are_truncated_and_paths_with_control_characters_omitted() -> None:
    many = [certificate(f"/{number:03}.crt", timedelta(days=1)) for number in range(MAX_SHOWN + 5)]
    many.append(certificate("/\x1b[2J.crt", timedelta(days=1)))
    shown = lines(machine("a", *many))
    assert shown[-1] == "... and 5 more; show all with -o json"
    assert len(shown) == MAX_SHOWN + 2
    assert "\x1b" not in "".join(shown)
