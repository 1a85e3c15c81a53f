"""The server's own certificates and keys: made on first start, renewed before they expire, never asked for.

One authority signs the serving certificate and the client certificates. It is kept for its whole life, because every
kubeconfig handed out trusts it; what it signs is short-lived by comparison and made anew when a third of its life is
left, or when the server is reached by a name the certificate does not carry. Keys are P-256: a new one takes less than
a millisecond, so a first start is no slower than any other.
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

UID_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57683.2")  # where a client certificate's subject carries a user's UID
ADMIN = "kubernetes-admin"
NODE_CLIENT = "kube-apiserver-kubelet-client"

_CA_LIFE = timedelta(days=3650)
_LEAF_LIFE = timedelta(days=365)
_ALWAYS_SERVED = (
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
    """Certificates on disk that cannot be used; the text says which file and what to do."""


class Pki:
    """Everything the server signs with. Built by `load_or_create`."""

    def __init__(
        self, *, authority: KeyPair, serving: KeyPair, admin: KeyPair, service_accounts: ec.EllipticCurvePrivateKey
    ) -> None:
        self.authority = authority
        self.serving = serving
        self.admin = admin
        self.service_accounts = service_accounts

    @classmethod
    def load_or_create(
        cls, directory: Path | None, *, now: datetime, hosts: Iterable[str] = (), authority: KeyPair | None = None
    ) -> Pki:
        """Certificates from `directory`, made or renewed where needed; without a directory, fresh ones in memory. An
        `authority` that others have too takes the place of one's own."""
        names = tuple(dict.fromkeys((*hosts, *_ALWAYS_SERVED)))
        files = _Files(directory)
        authority = files.keep("ca", authority) if authority is not None else files.pair("ca")
        if authority is None:
            authority = files.keep(
                "ca", certificates.authority(f"herder-ca@{int(now.timestamp())}", now=now, life=_CA_LIFE)
            )
        elif authority.certificate.not_valid_after_utc <= now:
            raise PkiError(f"{files.describe('ca')}: the certificate authority expired; remove ca.crt and ca.key")
        serving = files.pair("serving")
        if serving is None or _stale(serving, authority, now) or not certificates.serves(serving.certificate, names):
            serving = files.keep(
                "serving", certificates.serving(authority, "herder-apiserver", names, now=now, life=_LEAF_LIFE)
            )
        admin = files.pair("admin")
        if admin is None or _stale(admin, authority, now):
            admin = files.keep("admin", client_certificate(authority, ADMIN, (SUPERUSERS,), now=now))
        signer = files.key("service-accounts")
        if signer is None:
            signer = ec.generate_private_key(ec.SECP256R1())
            files.keep_key("service-accounts", signer)
        return cls(authority=authority, serving=serving, admin=admin, service_accounts=signer)

    def client_certificate(self, name: str, groups: Sequence[str] = (), *, now: datetime, uid: str = "") -> KeyPair:
        return client_certificate(self.authority, name, groups, now=now, uid=uid)

    def server_context(self) -> ssl.SSLContext:
        """TLS for the listening side: client certificates are welcome, not demanded."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL
        context.num_tickets = 0  # no client of ours resumes sessions, and making two costs a third of a handshake
        context.load_verify_locations(cadata=self.authority.certificate_pem.decode())
        certificates.load_chain(context, self.serving.certificate_pem, self.serving.key_pem)
        return context

    def node_client_context(self, *, now: datetime) -> ssl.SSLContext:
        """TLS for calls to nodes: we show who we are; their certificates are of their own making, as kubelets' are."""
        pair = self.client_certificate(NODE_CLIENT, (SUPERUSERS,), now=now)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        certificates.load_chain(context, pair.certificate_pem, pair.key_pem)
        return context

    def admin_kubeconfig(self, server: str, *, name: str = "herder") -> dict[str, Any]:
        """A kubeconfig for the administrator, with everything inside it."""
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


# --- making certificates ----------------------------------------------------------------------------------------


def client_certificate(
    authority: KeyPair, name: str, groups: Sequence[str] = (), *, now: datetime, uid: str = ""
) -> KeyPair:
    """A certificate that makes its holder the user `name` in `groups`."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
    if uid:
        attributes.append(x509.NameAttribute(UID_OID, uid))
    return certificates.leaf(
        authority, x509.Name(attributes), ExtendedKeyUsageOID.CLIENT_AUTH, now=now, life=_LEAF_LIFE
    )


def _stale(pair: KeyPair, authority: KeyPair, now: datetime) -> bool:
    """Signed by another authority, or with less than a third of its life left."""
    return now > certificates.renewal(pair.certificate) or not certificates.is_issued_by(
        pair.certificate, authority.certificate
    )


# --- files ------------------------------------------------------------------------------------------------------


class _Files:
    """`<name>.crt` and `<name>.key` in one directory; nothing is kept where there is none."""

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
            raise PkiError(f"{path}: the certificate does not belong to {name}.key")
        return KeyPair(certificate, key)

    def key(self, name: str) -> ec.EllipticCurvePrivateKey | None:
        path = self.directory / f"{name}.key" if self.directory else None
        if path is None or not path.exists():
            return None
        try:
            return certificates.private_key(path.read_bytes())
        except ValueError as error:
            raise PkiError(f"{path}: {error}") from error

    def keep(self, name: str, pair: KeyPair) -> KeyPair:
        # The certificate goes first: a key without its certificate is made anew, never half trusted.
        if self.directory is not None:
            (self.directory / f"{name}.crt").unlink(missing_ok=True)
            self.keep_key(name, pair.key)
            _write(self.directory / f"{name}.crt", pair.certificate_pem, 0o644)
        return pair

    def keep_key(self, name: str, key: ec.EllipticCurvePrivateKey) -> None:
        if self.directory is not None:
            _write(self.directory / f"{name}.key", private_pem(key), 0o600)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all, and never readable by others for a moment."""
    scratch = path.with_name(path.name + ".new")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(scratch, path)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
