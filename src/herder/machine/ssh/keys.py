"""SSH key pairs of machines."""

from __future__ import annotations

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519


def new_key_pair() -> tuple[bytes, bytes]:
    """Generate a key pair: the private key in OpenSSH format, and the authorized_keys line.

    Ed25519 is supported by all providers and sshd versions, and cheap to generate, while many RSA keys at once keep a
    small host busy. The files are still named `id_rsa` and `id_rsa.pub`, where other programs look for them.
    """
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + b"\n"


def new_rsa_key_pair() -> tuple[bytes, bytes]:
    """Generate an RSA key pair in PEM format, for providers that require it."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + b"\n"
