"""EC2 client: endpoint, credentials, timeouts and retries."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
from botocore.config import Config as ClientConfig

from herder.machine.drivers.amazonec2 import settings
from herder.machine.drivers.amazonec2.options import PREFIX
from herder.machine.drivers.amazonec2.settings import Config
from herder.machine.errors import MachineError

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

_SIGNED_FOR = "us-east-1"  # signing region for endpoints without regions, if the record has none
_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 60


def connect(config: Config) -> EC2Client:
    """Connect; boto3 retries throttled requests and broken connections as often as the flag says."""
    session = boto3.session.Session(region_name=config["Region"] or _SIGNED_FOR)
    if not config.get("Endpoint"):
        _require_known_region(session, config["Region"])
    access, secret, token = _credentials(config)
    return session.client(
        "ec2",
        endpoint_url=_endpoint(config),
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        aws_session_token=token,
        config=ClientConfig(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_ANSWER_SECONDS,
            retries={"mode": "standard", "total_max_attempts": max(config.get("RetryCount", 0), 0) + 1},
        ),
    )


def _require_known_region(session: boto3.session.Session, region: str) -> None:
    known = {
        name
        for partition in session.get_available_partitions()
        for name in session.get_available_regions("ec2", partition)
    }
    if region not in known:
        common = ", ".join(sorted(session.get_available_regions("ec2")))
        raise MachineError(
            f'boto3 {boto3.__version__} does not know the AWS region "{region}"',
            f"set --{PREFIX}region to one of {common}; for a newer region run pip install --upgrade boto3",
        )


def _credentials(config: Config) -> tuple[str | None, str | None, str | None]:
    """Return explicit credentials, then those of the environment; else None, and boto3 uses its own files or the
    instance role.
    """
    if config.get("AccessKey") and config.get("SecretKey"):
        return config["AccessKey"], config["SecretKey"], config.get("SessionToken") or None
    found = settings.environment_credentials()
    if found is not None:
        return *found, os.environ.get("AWS_SESSION_TOKEN") or None
    return None, None, None


def _endpoint(config: Config) -> str | None:
    endpoint = config.get("Endpoint")
    if not endpoint:
        return None
    url = endpoint if "://" in endpoint else f"{'http' if config.get('DisableSSL') else 'https'}://{endpoint}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise MachineError(
            f"--{PREFIX}endpoint is not a host name or a URL without credentials",
            "use a URL such as https://ec2.example.org",
        )
    return url
