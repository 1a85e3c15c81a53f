"""TLS context for a connection: trusted CA, server verification, client certificate."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from herder.engine.client.kubeconfig import KubeconfigError, RestConfig


def tls_context(connection: RestConfig) -> ssl.SSLContext:
    """Build the SSL context for a connection."""
    try:
        context = ssl.create_default_context(cadata=connection.ca.decode() if connection.ca else None)
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigError("certificate-authority: not a certificate in PEM") from error
    if connection.skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if connection.client_certificate and connection.client_key:
        # The ssl module loads client certificates only from files: use a private, temporary one.
        with tempfile.TemporaryDirectory(prefix="herder-") as folder:
            path = Path(folder) / "client.pem"
            path.touch(mode=0o600)
            path.write_bytes(connection.client_certificate + b"\n" + connection.client_key)
            try:
                context.load_cert_chain(path)
            except ssl.SSLError as error:
                raise KubeconfigError(f"client-certificate, client-key: not a pair in PEM: {error.reason}") from error
    return context
