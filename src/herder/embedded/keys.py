"""Keys of a server. A new server gets the same ones, so that it can read the data of a lost one.

The manager owns the keys that encrypt the store, and writes them into plans. Servers of clusters whose keys it does not
own yet derive one from the server token, which the manager keeps too; servers that have other keys already keep them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from herder.embedded.configuration import CONFIG_DIR, Configuration, ConfigurationError, read
from herder.engine.store import key_file
from herder.engine.store.errors import StoreError
from herder.engine.store.files import create_durably

_CURVE_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256


def write_encryption_keys(configuration: Configuration) -> str:
    """Write the key file of the store; returns the digest of the manager's keys, and "" if it does not own them."""
    directory = configuration.data_dir / "server" / "db"
    path = directory / key_file.KEY_FILE
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        create_durably(path, base64.b64encode(_derived(configuration.token, "encryption of the store")) + b"\n")
    return key_file.compose(directory)


def service_account_key(token: str) -> ec.EllipticCurvePrivateKey:
    number = int.from_bytes(_derived(token, "service accounts"), "big")
    return ec.derive_private_key(number % (_CURVE_ORDER - 1) + 1, ec.SECP256R1())


def _derived(token: str, purpose: str) -> bytes:
    return hmac.new(token.encode(), f"key:{purpose}".encode(), hashlib.sha256).digest()


def main(config_dir: Path = CONFIG_DIR) -> int:
    """Before a restore on a new server: the snapshot program checks that the key of the snapshot exists."""
    try:
        write_encryption_keys(read(config_dir))
    except (ConfigurationError, StoreError) as problem:
        print(f"herder-embedded: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
