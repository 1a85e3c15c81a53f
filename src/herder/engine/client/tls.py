"""Whom a connection trusts and who it says it is, as TLS wants to be told."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from herder.engine.client.kubeconfig import Connection, KubeconfigError


def tls_context(connection: Connection) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=connection.ca.decode() if connection.ca else None)
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigError("certificate-authority: not a certificate in PEM") from error
    if connection.skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if connection.client_certificate and connection.client_key:
        # The ssl module takes a client certificate only from a file: one nobody else can read, for this moment.
        with tempfile.TemporaryDirectory(prefix="herder-") as folder:
            path = Path(folder) / "client.pem"
            path.touch(mode=0o600)
            path.write_bytes(connection.client_certificate + b"\n" + connection.client_key)
            try:
                context.load_cert_chain(path)
            except ssl.SSLError as error:
                raise KubeconfigError(f"client-certificate, client-key: not a pair in PEM: {error.reason}") from error
    return context
