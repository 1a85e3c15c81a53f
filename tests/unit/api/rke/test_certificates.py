"""Reports of certificates: nodes control them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.rke.names import CERTIFICATES
from herder.api.rke.node.certificates import (
    MAX_CERTIFICATES,
    NodeCertificate,
    certificates_of,
    parse_report,
    to_annotation,
)
from tests.support.builders import new_object

GOOD = "certificate 0A1B 20271116062300Z /tls/client-admin.crt"
FOUND = NodeCertificate("2027-11-16T06:23:00Z", "/tls/client-admin.crt", "0A1B")


def machine(annotation: str) -> Any:
    return new_object(MACHINE, "a", metadata={"annotations": {CERTIFICATES: annotation}})


def test_certificates_are_sorted_by_expiry() -> None:
    later = GOOD.replace("2027", "2036").replace("client-admin", "server-ca")
    found = parse_report(f"{later}\n{GOOD}\n".encode())
    assert found == (FOUND, NodeCertificate("2036-11-16T06:23:00Z", "/tls/server-ca.crt", "0A1B"))
    assert found[0].expires == datetime(2027, 11, 16, 6, 23, tzinfo=UTC)
    assert certificates_of(machine(to_annotation(found))) == found


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"certificate",
        b"certificate 0A 20271116062300Z",
        b"certificate 0A 20271116062300Z relative.crt",
        b"certificate 0a 20271116062300Z /lower.crt",
        b"certificate -1 20271116062300Z /a.crt",
        b"certificate 0A -0271116062300Z /a.crt",
        b"certificate 0A 00000101000000Z /a.crt",
        b"certificate 0A 19491231235959Z /a.crt",
        b"certificate 0A 90000101000000Z /a.crt",
        b"certificate 0A 99991231235959Z /a.crt",
        b"certificate 0A 20271316062300Z /a.crt",
        b"certificate 0A 20270230062300Z /a.crt",
        b"certificate 0A 20270101240000Z /a.crt",
        b"certificate 0A 20270101235960Z /a.crt",
        b"certificate 0A 2027Z /a.crt",
        b"certificate 0A " + b"9" * 5000 + b"Z /a.crt",
        b"certificate " + b"9" * 5000 + b" 20271116062300Z /a.crt",
        b"certificate 0A 20271116062300Z /" + b"a" * 200,
        b"certificate 0A 20271116062300Z /a\x1b[2J.crt",
        b"certificate 0A 20271116062300Z /a\xff.crt",
        b"certificate 0A 20271116062300Z /a\t.crt",
        b"certificate 0A 20271116062300Z /a.crt\r",
        "certificate 0A \u0662\u0660\u0662\u0667\u0661\u0661\u0661\u0666062300Z /a.crt".encode(),
        b"\x00" * 5000,
    ],
)
def test_malformed_lines_are_ignored(line: bytes) -> None:
    assert parse_report(line) == ()
    assert parse_report(line + b"\n" + GOOD.encode()) == (FOUND,)


def test_reports_are_bounded() -> None:
    many = "\n".join(f"certificate 0A 20271116062300Z /{number}.crt" for number in range(100_000)).encode()
    found = parse_report(many)
    assert len(found) == MAX_CERTIFICATES
    assert len(parse_report(b"x" * (64 << 20) + b"\n" + GOOD.encode())) == 0
    assert parse_report(f"{GOOD}\n".encode() * MAX_CERTIFICATES) == (FOUND,)
    assert len(to_annotation(found)) < 48 << 10


@pytest.mark.parametrize(
    "annotation",
    [
        "",
        "{}",
        "null",
        "[",
        "[1]",
        "[" * 10_000,
        '[{"path":"/a","serial":"0A"}]',
        '[{"path":"/a","serial":"0A","notAfter":"soon"}]',
        '[{"path":"/a","serial":"0A","notAfter":7}]',
        '[{"path":"/a","serial":"0A","notAfter":"99999-01-01T00:00:00Z"}]',
        '[{"path":"/a","serial":"0A","notAfter":"9999-12-31T23:59:59Z"}]',
        '[{"path":"/a","serial":"0A","notAfter":"%s"}]' % ("9" * 5000),
        '[{"path":"/%s","serial":"0A","notAfter":"2027-01-01T00:00:00Z"}]' % ("x" * 40_000),
        '[{"path":"/\\u001b[2J","serial":"0A","notAfter":"2027-01-01T00:00:00Z"}]',
        to_annotation([FOUND] * 2000),
    ],
)
def test_other_annotations_are_no_report(annotation: str) -> None:
    assert certificates_of(machine(annotation)) == ()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib/rancher/k3s/server/tls/server-ca.crt", True),
        ("/var/lib/rancher/k3s/server/tls/server-ca.nochain.crt", True),
        ("/var/lib/rancher/rke2/server/tls/etcd/peer-ca.crt", True),
        ("/var/lib/rancher/rke2/server/tls/request-header-ca.crt", True),
        ("/var/lib/rancher/herder/server/tls/ca.crt", True),
        ("/etc/kubernetes/pki/ca.crt", True),
        ("/etc/kubernetes/pki/front-proxy-ca.crt", True),
        ("/etc/kubernetes/pki/front-proxy-client.crt", False),
        ("/etc/kubernetes/pki/etcd/server.crt", False),
        ("/etc/kubernetes/admin.conf", False),
        ("/var/lib/rancher/k3s/server/tls/client-ca.key", False),
        ("/var/lib/rancher/k3s/agent/client-africa.crt", False),
    ],
)
def test_authorities_are_recognized_by_their_names(path: str, expected: bool) -> None:
    assert NodeCertificate("2027-11-16T06:23:00Z", path, "0A").is_authority is expected
