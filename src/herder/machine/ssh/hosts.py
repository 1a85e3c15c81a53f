"""Host key verification: the key that the driver knows, or trust on first use."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, MutableMapping

from herder.machine.driver import Reach
from herder.machine.errors import MachineError
from herder.machine.state.saved_machine import KNOWN_HOSTS

# Signature algorithms by key type: a server with several keys must use the known one.
_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
_KEY_TYPE = re.compile(r"[a-z0-9@.-]{1,64}")


class HostKeyChanged(MachineError):
    def __init__(self, host: str, expected: list[str], shown: str) -> None:
        super().__init__(
            f"the host key of {host} has changed: {fingerprint(shown)} instead of "
            f"{' or '.join(map(fingerprint, expected))}. "
            "The connection may be intercepted, or the machine was reinstalled",
            "if the change is expected, run ssh once with --accept-new-host-key",
        )


class HostKeys:
    """`files` is the machine's directory; `remember` persists a first key."""

    def __init__(
        self,
        reach: Reach,
        files: MutableMapping[str, bytes],
        *,
        remember: Callable[[], None] | None = None,
        accept_new: bool = False,
    ) -> None:
        self._reach = reach
        self._files = files
        self._remember = remember
        self._has_host_keys = bool(reach.host_keys)
        lines = reach.host_keys or _lines(files.get(KNOWN_HOSTS, b""))
        self._known = [] if accept_new and not self._has_host_keys else [_bare(line) for line in lines]
        self.refused: HostKeyChanged | None = None
        self.first_seen = ""

    def algorithms(self) -> list[str] | None:
        """Algorithms that the server must use; None: any."""
        types = [key.split()[0] for key in self._known]
        return [name for kind in types for name in _ALGORITHMS.get(kind, (kind,))] or None

    def accepts(self, key: str) -> bool:
        """`key` is `type base64`."""
        if any(hmac.compare_digest(key, known) for known in self._known):
            return True
        if self._known:
            self.refused = HostKeyChanged(self._reach.host, self._known, key)
            return False
        self.first_seen = key
        return True

    def keep_first_seen(self) -> None:
        """Store the key after a successful login: only then the peer is known to have our key."""
        if self.first_seen:
            self._known = [self.first_seen]
            self._files[KNOWN_HOSTS] = f"{_name(self._reach)} {self.first_seen}\n".encode()
            self.first_seen = ""
            if self._remember is not None:
                self._remember()


def fingerprint(key: str) -> str:
    """Format like `ssh-keygen -l`."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _lines(content: bytes) -> tuple[str, ...]:
    """Without host names: the record is of one machine, whatever its address."""
    lines = (line.split(None, 1) for line in content.decode(errors="replace").splitlines() if line[:1] not in "#|@")
    return tuple(parts[1] for parts in lines if len(parts) == 2)


def _bare(line: str) -> str:
    """Return type and key, without a comment. Editors of the state Secret can write anything there."""
    kind, _, key = " ".join(line.split()[:2]).partition(" ")
    try:
        is_key = bool(_KEY_TYPE.fullmatch(kind) and base64.b64decode(key, validate=True))
    except (binascii.Error, ValueError):
        is_key = False
    if not is_key:
        raise MachineError(
            "the host key in the machine state is not a host key", "restore the state Secret from a backup"
        )
    return f"{kind} {key}"


def _name(reach: Reach) -> str:
    return reach.host if reach.port == 22 else f"[{reach.host}]:{reach.port}"
