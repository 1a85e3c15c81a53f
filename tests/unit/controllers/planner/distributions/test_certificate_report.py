"""The instruction that reports certificates: the script runs in a shell, on certificates from several libraries."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from herder.api.rke.node.certificates import MAX_CERTIFICATES, NodeCertificate, parse_report
from herder.api.rke.node.plan import CERTIFICATE_EXPIRY, PeriodicInstruction
from herder.controllers.planner.distributions import certificate_report
from herder.controllers.planner.distributions.certificate_report import (
    SCRIPT,
    embedded_expiry,
    kubeadm_expiry,
    rancher_expiry,
)
from herder.controllers.planner.distributions.interface import Roles
from herder.controllers.planner.distributions.kubeadm.distribution import Kubeadm
from herder.controllers.planner.distributions.lookup import distribution_of
from tests.unit.controllers.planner.distributions import inputs, test_embedded, test_kubeadm

AUTHORITIES = sorted(Path("/usr/share/ca-certificates/mozilla").glob("*.crt"))
PROGRAMS = [
    (shell, awk)
    for shell in ("dash", "bash", "busybox sh")
    for awk in ("mawk", "gawk", "original-awk", "busybox awk")
    if all(shutil.which(each.split()[0]) for each in (shell, awk))
]
"""Shells and implementations of awk that this machine has."""
KEY = ec.generate_private_key(ec.SECP256R1())
NOW = datetime(2026, 11, 18, 12, 30, 59, tzinfo=UTC)


def new_certificate(
    *,
    expires: datetime = NOW,
    serial: int = 0x1234,
    subject: str = "node",
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey = KEY,
    names: int = 1,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, subject) for _ in range(names)])
    alternatives = x509.SubjectAlternativeName([x509.DNSName(f"{each}.example") for each in range(names)])
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(datetime(1950, 1, 1))
        .not_valid_after(expires)
        .add_extension(alternatives, critical=False)
        .sign(key, algorithm)
    )


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_key() -> bytes:
    plain = serialization.NoEncryption()
    return KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)


def report(
    *patterns: str | Path, limit: int = MAX_CERTIFICATES, last: str | Path = "/etc/passwd"
) -> subprocess.CompletedProcess[bytes]:
    command = ("sh", "-c", SCRIPT, "sh", str(limit), str(last), *map(str, patterns))
    return subprocess.run(command, env={"LC_ALL": "C", "PATH": os.environ["PATH"]}, capture_output=True, check=False)


def expected(path: Path, certificate: x509.Certificate) -> NodeCertificate:
    serial = f"{certificate.serial_number:X}"
    octets = (certificate.serial_number.bit_length() // 8 + 1) * 2  # DER has a sign
    return NodeCertificate(
        certificate.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ"), str(path), serial.rjust(octets, "0")
    )


# --- the script -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.parametrize(("shell", "awk"), PROGRAMS)
def test_every_public_authority_is_reported(shell: str, awk: str, tmp_path: Path) -> None:
    """About 140 certificates that different programs have created."""
    assert len(AUTHORITIES) > 100
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, (program, *arguments) in (("sh", shell.split()), ("awk", awk.split())):
        command = " ".join((shutil.which(program) or "", *arguments))
        (binaries / name).write_text(f'#!/bin/bash\nexec {command} "$@"\n')
        (binaries / name).chmod(0o755)
    for begin in range(0, len(AUTHORITIES), MAX_CERTIFICATES):
        paths = [tmp_path / f"{number}.crt" for number in range(MAX_CERTIFICATES)][: len(AUTHORITIES) - begin]
        for path, original in zip(paths, AUTHORITIES[begin:], strict=False):
            shutil.copy(original, path)
        run = (binaries / "sh", "-c", SCRIPT, "sh", str(MAX_CERTIFICATES), paths[0], *paths)
        done = subprocess.run(run, env={"LC_ALL": "C", "PATH": str(binaries)}, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        wanted = [expected(path, x509.load_pem_x509_certificate(path.read_bytes())) for path in paths]
        assert parse_report(done.stdout) == tuple(sorted(wanted))


@pytest.mark.parametrize(
    "certificate",
    [
        new_certificate(),
        new_certificate(serial=1),
        new_certificate(serial=2**159 - 1),
        new_certificate(subject="ü" * 20),
        new_certificate(names=90),  # needs lengths of two octets
        new_certificate(expires=datetime(2049, 12, 31, 23, 59, 59)),  # the last UTCTime
        new_certificate(expires=datetime(2050, 1, 1)),  # the first GeneralizedTime
        new_certificate(expires=datetime(1951, 1, 1)),
        new_certificate(expires=datetime(8999, 12, 31, 23, 59, 59)),
        new_certificate(key=rsa.generate_private_key(65537, 2048)),
        new_certificate(key=ed25519.Ed25519PrivateKey.generate()),
    ],
    ids=lambda certificate: certificate.not_valid_after_utc.isoformat(),
)
def test_certificates_are_reported_with_serial_and_expiry(certificate: x509.Certificate, tmp_path: Path) -> None:
    for content in (pem(certificate), pem(certificate).replace(b"\n", b"\r\n"), b"text\n" + pem(certificate)):
        path = tmp_path / "certificate.crt"
        path.write_bytes(content)
        done = report(path)
        assert (done.returncode, done.stderr) == (0, b"")
        assert parse_report(done.stdout) == (expected(path, certificate),)


def test_kubeconfigs_bundles_and_chains(tmp_path: Path) -> None:
    """Of a chain, the first certificate counts. No key is printed, wherever it is in the file."""
    first, other = new_certificate(), new_certificate(expires=NOW - timedelta(days=1))
    encoded = [base64.b64encode(each).decode() for each in (pem(first) + pem(other), private_key())]
    contents = {
        "bundle.pem": private_key() + pem(first) + private_key(),
        "chain.crt": pem(first) + pem(other),
        "admin.conf": f"""apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {base64.b64encode(pem(other)).decode()}
users:
- name: admin
  user:
    client-certificate-data: {encoded[0]}
    client-key-data: {encoded[1]}
""".encode(),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    done = report(*(tmp_path / name for name in contents))
    assert parse_report(done.stdout) == tuple(sorted(expected(tmp_path / name, first) for name in contents))
    assert all(line.startswith(b"certificate 1234 ") for line in done.stdout.splitlines())
    lines = private_key().split(b"\n")[1:-2]
    assert not any(line in done.stdout + done.stderr for line in (*lines, *map(str.encode, encoded)))


def block(content: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + content + b"\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"no certificate\n",
        private_key(),
        b"-----BEGIN CERTIFICATE-----\n",
        block(b""),
        block(b"MIIB"),
        block(b"A" * 100_000),
        block(base64.b64encode(b"\x30\x84\xff\xff\xff\xff" * 9)),
        block(base64.b64encode(b"\x30\xff" * 99)),
        b"client-certificate-data: AAAA\n",
        b"client-certificate-data:\n",
        bytes(range(256)) * 9,
    ],
)
def test_other_files_are_skipped(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.crt").write_bytes(content)
    (tmp_path / "good.crt").write_bytes(pem(new_certificate()))
    assert report(tmp_path / "bad.crt").returncode == 1
    found = parse_report(report(f"{tmp_path}/*.crt").stdout)
    assert [each.path for each in found] == [str(tmp_path / "good.crt")]


def test_truncated_certificates_end_the_script(tmp_path: Path) -> None:
    content = new_certificate().public_bytes(serialization.Encoding.DER)
    path = tmp_path / "part.crt"
    for length in range(0, 120, 3):
        path.write_bytes(block(base64.b64encode(content[:length])))
        assert len(parse_report(report(path).stdout)) <= 1


def test_files_that_do_not_exist_or_are_none(tmp_path: Path) -> None:
    """Without a certificate it fails, so that agents run it again soon."""
    (tmp_path / "directory.crt").mkdir()
    assert report(f"{tmp_path}/*.crt", f"{tmp_path}/none/*.crt").returncode == 1
    path = tmp_path / "with space.crt"
    path.write_bytes(pem(new_certificate()))
    done = report(f"{tmp_path}/none/*.crt", f"{tmp_path}/*.crt", last=tmp_path / "none.crt")
    assert done.returncode == 1
    assert [each.path for each in parse_report(done.stdout)] == [str(path)]


def test_the_number_of_certificates_is_limited(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.crt").write_bytes(pem(new_certificate()))
    assert len(report(f"{tmp_path}/*.crt", limit=4).stdout.splitlines()) == 4


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "server", "worker"),
    [
        ("v1.33.4+k3s1", rancher_expiry("/var/lib/rancher/k3s"), rancher_expiry("/var/lib/rancher/k3s")),
        ("v1.33.4+rke2r1", rancher_expiry("/var/lib/rancher/rke2"), rancher_expiry("/var/lib/rancher/rke2")),
        ("v1.36.3+kubeadm1", kubeadm_expiry(), kubeadm_expiry()),
        (
            "v1.36.3+herder1",
            embedded_expiry("/var/lib/rancher/herder", is_server=True),
            embedded_expiry("/var/lib/rancher/herder", is_server=False),
        ),
    ],
)
def test_every_plan_has_the_instruction(version: str, server: PeriodicInstruction, worker: PeriodicInstruction) -> None:
    distribution = distribution_of(version)
    if isinstance(distribution, Kubeadm):
        cluster = test_kubeadm.cluster()
    else:
        cluster = test_embedded.READY if "herder" in version else inputs.cluster(version)
    only_worker = inputs.server(roles=Roles(worker=True), is_init=False, join_url="https://10.0.0.11:6443")
    for machine, expected_instruction in ((inputs.server(), server), (only_worker, worker)):
        rendered = distribution.render(cluster, machine).periodic_instructions
        assert [each for each in rendered if each.name == CERTIFICATE_EXPIRY] == [expected_instruction]
    assert (server.name, server.command, server.args[:2]) == ("certificate-expiry", "sh", ("-c", SCRIPT))
    assert (server.env, server.period_seconds) == (("LC_ALL=C",), certificate_report.PERIOD_SECONDS)
