"""The SSH key of a machine: its files, and the EC2 key pair."""

from __future__ import annotations

import secrets
import string
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
from botocore.exceptions import ClientError

from herder.machine.driver import Machine
from herder.machine.drivers.amazonec2.errors import code_of
from herder.machine.drivers.amazonec2.options import PREFIX
from herder.machine.drivers.amazonec2.settings import Config
from herder.machine.errors import MachineError
from herder.machine.ssh.keys import new_key_pair

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

_PRIVATE, _PUBLIC = "id_rsa", "id_rsa.pub"


def prepare(machine: Machine, *, is_new: bool) -> None:
    """Create the files and choose the key pair's name; recorded before anything is created.

    Only the flags of a new machine may name a file of this host. Its key is in the first record that is saved, which
    editors of a state Secret can change.
    """
    if _PRIVATE not in machine.files:
        if machine.config["SSHPrivateKeyPath"] and not is_new:
            raise MachineError(
                f'the record of machine "{machine.name}" names the file of an SSH key, and does not contain the key',
                f"remove the machine with rm -y {machine.name}, then create it again",
            )
        machine.files[_PRIVATE], machine.files[_PUBLIC] = _key_pair(machine.config)
    if not machine.config["KeyName"]:
        machine.config["KeyName"] = f"{machine.name}-{''.join(secrets.choice(string.ascii_letters) for _ in range(5))}"


def ensure(client: EC2Client, machine: Machine) -> None:
    if machine.config["ExistingKey"]:
        return
    try:
        client.import_key_pair(KeyName=machine.config["KeyName"], PublicKeyMaterial=machine.files[_PUBLIC])
    except ClientError as error:
        if code_of(error) != "InvalidKeyPair.Duplicate":  # by an attempt before this one, which chose the name
            raise


def delete(client: EC2Client, config: Config) -> None:
    """Delete the key pair, unless it existed before the machine."""
    if not config.get("KeyName") or config.get("ExistingKey"):
        return
    try:
        client.delete_key_pair(KeyName=config["KeyName"])
    except ClientError as error:
        if code_of(error) != "InvalidKeyPair.NotFound":
            raise


def _key_pair(config: Config) -> tuple[bytes, bytes]:
    if not config["SSHPrivateKeyPath"]:
        return new_key_pair()
    path = Path(config["SSHPrivateKeyPath"])
    try:
        private = path.read_bytes()
        return private, asyncssh.import_private_key(private).export_public_key()
    except OSError as error:
        raise MachineError(f"--{PREFIX}ssh-keypath: cannot read {path}: {error.strerror}") from error
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise MachineError(
            f"--{PREFIX}ssh-keypath: {path} is not a usable SSH private key", "pass a private key without a passphrase"
        ) from error
