"""First-boot files of a machine: identity, authorized keys, and the install script.

A script alone is run by our own systemd unit, which is fast. With user data, or on request, cloud-init runs it. Either
way the script runs until it has ended once, and is then deleted, because it may contain secrets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from herder.machine.errors import MachineError
from herder.machine.host.kinds import Ask

SCRIPT = "var/lib/herder/bootstrap"
HOST_KEY = "etc/ssh/ssh_host_ed25519_key"
SENTINEL = "/run/cluster-api/bootstrap-success.complete"  # from the Cluster API contract

_RUNNER = "var/lib/herder/first-boot"
_RUN_ONCE = f"""\
#!/bin/sh
# Runs the machine's bootstrap script until it has ended once.
[ -e /{SCRIPT} ] || exit 0
/{SCRIPT} </dev/null
code=$?
rm -f /{SCRIPT}
if [ $code = 0 ]; then
    mkdir -p {os.path.dirname(SENTINEL)}
    echo success > {SENTINEL}
fi
exit $code
"""
_UNIT = f"""\
[Unit]
Description=First boot of this machine
ConditionPathExists=/{SCRIPT}
After=network.target ssh.service

[Service]
Type=oneshot
ExecStart=/{_RUNNER}
TimeoutStartSec=infinity
"""
_RUN_BY_CLOUD_INIT = f"#!/bin/sh\nexec /{_RUNNER}\n"


@dataclass(frozen=True, slots=True)
class File:
    path: str
    content: bytes
    mode: int = 0o644


def files(ask: Ask, *, machine_id: str, cloud_init: bool) -> Iterator[File]:
    """`cloud_init`: use it even without user data."""
    hostname = ask.hostname
    yield File("etc/hostname", f"{hostname}\n".encode())
    yield File("etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {hostname}\n::1 localhost ip6-localhost\n".encode())
    yield File("root/.ssh/authorized_keys", f"{ask.authorized_key.strip()}\n".encode(), 0o600)
    if ask.script:
        yield File(SCRIPT, ask.script, 0o700)
        yield File(_RUNNER, _RUN_ONCE.encode(), 0o755)
    if cloud_init or ask.user_data:
        seed = "var/lib/cloud/seed/nocloud"
        names = {"instance-id": machine_id, "local-hostname": hostname}
        yield File(f"{seed}/meta-data", f"{json.dumps(names)}\n".encode())
        yield File(f"{seed}/user-data", user_data(ask), 0o600)
    else:
        yield File("etc/cloud/cloud-init.disabled", b"")
        yield File("etc/systemd/system/herder-first-boot.service", _UNIT.encode())
        yield File("etc/systemd/system/multi-user.target.d/herder.conf", b"[Unit]\nWants=herder-first-boot.service\n")


def user_data(ask: Ask) -> bytes:
    """Combine the user's data and our script as MIME parts, which cloud-init processes separately."""
    parts = MIMEMultipart(boundary="herder-user-data")
    if ask.user_data:
        parts.attach(_part(ask.user_data))
    if ask.script:
        parts.attach(_part(_RUN_BY_CLOUD_INIT.encode()))
    return parts.as_bytes()


def _part(content: bytes) -> MIMEText:
    for start, kind in ((b"#cloud-config", "cloud-config"), (b"#!", "x-shellscript")):
        if content.startswith(start):
            return MIMEText(content.decode(), kind, "utf-8")
    raise MachineError("--local-userdata is neither #cloud-config nor a script", "start it with #cloud-config or #!")


def write(root: Path, content: Iterable[File]) -> None:
    """Write to the machine's upper directory, durably."""
    for file in content:
        path = root / file.path
        missing = [parent for parent in path.parents if not parent.exists()]
        for directory in reversed(missing):
            directory.mkdir(mode=0o700 if directory.name in ("root", ".ssh", "herder") else 0o755)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, file.mode)
        with os.fdopen(descriptor, "wb") as opened:
            os.fchmod(descriptor, file.mode)
            opened.write(file.content)
            opened.flush()
            os.fsync(descriptor)


def host_key() -> tuple[File, str]:
    """Generate a host key; return its file and public key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return File(HOST_KEY, private, 0o600), public
