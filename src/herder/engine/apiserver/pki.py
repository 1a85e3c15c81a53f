"""Certificates and keys of the server: created on first start and renewed before they expire.

One CA signs the serving and the client certificates. It is kept for its whole lifetime, because every kubeconfig trusts
it. Leaf certificates are renewed when a third of their lifetime is left, or when the serving certificate lacks a name
of the server. Keys are P-256, which takes less than a millisecond to generate.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from herder.engine import certificates
from herder.engine.apiserver.auth.users import SUPERUSERS
from herder.engine.certificates import KeyPair, private_pem

UID_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57683.2")  # subject attribute of a client certificate with the user's UID
ADMIN = "kubernetes-admin"
NODE_CLIENT = "kube-apiserver-kubelet-client"

_CA_LIFETIME = timedelta(days=3650)
_LEAF_LIFETIME = timedelta(days=365)
_DEFAULT_HOSTS = (
    "localhost",
    "127.0.0.1",
    "::1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "10.96.0.1",
)


class PkiError(Exception):
    """A certificate or key on disk is unusable. The message names the file and what to do."""


class Pki:
    """Certificates and keys of one server. Create it with `load_or_create`."""

    def __init__(
        self, *, authority: KeyPair, serving: KeyPair, admin: KeyPair, service_accounts: ec.EllipticCurvePrivateKey
    ) -> None:
        self.authority = authority
        self.serving = serving
        self.admin = admin
        self.service_accounts = service_accounts

    @classmethod
    def load_or_create(
        cls,
        directory: Path | None,
        *,
        now: datetime,
        hosts: Iterable[str] = (),
        authority: KeyPair | None = None,
        service_accounts: ec.EllipticCurvePrivateKey | None = None,
    ) -> Pki:
        """Load the certificates in `directory`, creating or renewing them as needed; without a directory, create them
        in memory.

        `authority` replaces the server's own CA, for servers that share one. `hosts` are additional names of the
        serving certificate. `service_accounts` is the signing key of a new server; by default it is random.
        """
        names = tuple(dict.fromkeys((*hosts, *_DEFAULT_HOSTS)))
        files = _Files(directory)
        authority = files.store("ca", authority) if authority is not None else files.pair("ca")
        if authority is None:
            authority = files.store(
                "ca", certificates.authority(f"herder-ca@{int(now.timestamp())}", now=now, life=_CA_LIFETIME)
            )
        elif authority.certificate.not_valid_after_utc <= now:
            raise PkiError(f"{files.describe('ca')}: the certificate authority has expired; remove ca.crt and ca.key")
        serving = files.pair("serving")
        if (
            serving is None
            or _needs_renewal(serving, authority, now)
            or not certificates.serves(serving.certificate, names)
        ):
            serving = files.store(
                "serving", certificates.serving(authority, "herder-apiserver", names, now=now, life=_LEAF_LIFETIME)
            )
        admin = files.pair("admin")
        if admin is None or _needs_renewal(admin, authority, now):
            admin = files.store("admin", client_certificate(authority, ADMIN, (SUPERUSERS,), now=now))
        signer = files.key("service-accounts")
        if signer is None:
            signer = service_accounts or ec.generate_private_key(ec.SECP256R1())
            files.store_key("service-accounts", signer)
        return cls(authority=authority, serving=serving, admin=admin, service_accounts=signer)

    def client_certificate(self, name: str, groups: Sequence[str] = (), *, now: datetime, uid: str = "") -> KeyPair:
        return client_certificate(self.authority, name, groups, now=now, uid=uid)

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context of the listener. Client certificates are requested, but not required."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL
        context.num_tickets = 0  # no client resumes sessions, and creating two tickets takes a third of a handshake
        context.load_verify_locations(cadata=self.authority.certificate_pem.decode())
        certificates.load_chain(context, self.serving.certificate_pem, self.serving.key_pem)
        return context

    def node_client_context(self, *, now: datetime) -> ssl.SSLContext:
        """Return the TLS context for requests to nodes: it presents our client certificate and, like kube-apiserver
        by default, does not verify the self-signed kubelet certificates."""
        pair = self.client_certificate(NODE_CLIENT, (SUPERUSERS,), now=now)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        certificates.load_chain(context, pair.certificate_pem, pair.key_pem)
        return context

    def admin_kubeconfig(self, server: str, *, name: str = "herder") -> dict[str, Any]:
        """Return a kubeconfig for the administrator, with embedded certificates."""
        return kubeconfig(
            server,
            name=name,
            user=ADMIN,
            authority_pem=self.authority.certificate_pem,
            credentials={
                "client-certificate-data": _base64(self.admin.certificate_pem),
                "client-key-data": _base64(self.admin.key_pem),
            },
        )


def kubeconfig(
    server: str, *, name: str, user: str, authority_pem: bytes, credentials: dict[str, str], namespace: str = ""
) -> dict[str, Any]:
    """Return a kubeconfig with one cluster, one user and one context."""
    context = {"cluster": name, "user": user} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": server, "certificate-authority-data": _base64(authority_pem)}}
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }


# --- certificates -----------------------------------------------------------------------------------------------


def client_certificate(
    authority: KeyPair, name: str, groups: Sequence[str] = (), *, now: datetime, uid: str = ""
) -> KeyPair:
    """Create a client certificate that authenticates as user `name` in `groups`."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
    if uid:
        attributes.append(x509.NameAttribute(UID_OID, uid))
    return certificates.leaf(
        authority, x509.Name(attributes), ExtendedKeyUsageOID.CLIENT_AUTH, now=now, life=_LEAF_LIFETIME
    )


def _needs_renewal(pair: KeyPair, authority: KeyPair, now: datetime) -> bool:
    """Whether the certificate was signed by another CA, or has less than a third of its lifetime left."""
    return now > certificates.renewal(pair.certificate) or not certificates.is_issued_by(
        pair.certificate, authority.certificate
    )


# --- files ------------------------------------------------------------------------------------------------------


class _Files:
    """`<name>.crt` and `<name>.key` files in one directory. Without a directory nothing is stored."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        if directory is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def describe(self, name: str) -> str:
        return str(self.directory / name) if self.directory else name

    def pair(self, name: str) -> KeyPair | None:
        key = self.key(name)
        if key is None or self.directory is None:
            return None
        path = self.directory / f"{name}.crt"
        if not path.exists():
            return None
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError as error:
            raise PkiError(f"{path}: not a PEM certificate") from error
        if certificate.public_key() != key.public_key():
            raise PkiError(f"{path}: the certificate does not belong to {name}.key; restore the matching file")
        return KeyPair(certificate, key)

    def key(self, name: str) -> ec.EllipticCurvePrivateKey | None:
        path = self.directory / f"{name}.key" if self.directory else None
        if path is None or not path.exists():
            return None
        try:
            return certificates.private_key(path.read_bytes())
        except ValueError as error:
            raise PkiError(f"{path}: {error}") from error

    def store(self, name: str, pair: KeyPair) -> KeyPair:
        # Remove the old certificate first: a key without a certificate is replaced on the next start, so a crash cannot
        # leave a mismatched pair.
        if self.directory is not None:
            (self.directory / f"{name}.crt").unlink(missing_ok=True)
            self.store_key(name, pair.key)
            _write(self.directory / f"{name}.crt", pair.certificate_pem, 0o644)
        return pair

    def store_key(self, name: str, key: ec.EllipticCurvePrivateKey) -> None:
        if self.directory is not None:
            _write(self.directory / f"{name}.key", private_pem(key), 0o600)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write atomically, and never make the file readable to others, not even for a moment."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
