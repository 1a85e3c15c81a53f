"""Key pairs by which machines let us in."""

from __future__ import annotations

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519


def new_key_pair() -> tuple[bytes, bytes]:
    """The private key as an OpenSSH file, and the public key's line as in authorized_keys.

    Ed25519: every provider and every sshd of this decade takes it, and it costs nothing to make, where two hundred RSA
    keys at once keep a small host busy for many seconds. The files keep the names `id_rsa` and `id_rsa.pub` all the
    same, because that is where other programs look.
    """
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + b"\n"


def new_rsa_key_pair() -> tuple[bytes, bytes]:
    """The same as RSA in a PEM file, for a provider that takes nothing else."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + b"\n"
