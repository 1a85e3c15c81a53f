"""The EC2 emulator in its own process, and a client that checks which resources exist there."""

from __future__ import annotations

import http.client
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3

from tests.support.canaries import canary
from tests.support.processes import terminate

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

REGION = "us-east-1"
ZONE = "us-east-1a"
IMAGE = "ami-0000000000000aaaa"  # an Ubuntu image that the emulator always has
KEYS = {"AWS_ACCESS_KEY": "testing", "AWS_SECRET_KEY": canary("ec2 secret key")}
"""The environment of a Job: the emulator accepts any credentials."""

_ROOT = Path(__file__).parents[3]


class Ec2:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> Ec2:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cloud.ec2_server"],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        with self._process.stdout as ready:
            self.port = int(ready.readline())
        return self

    def __exit__(self, *_: object) -> None:
        terminate(self._process)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @cached_property
    def client(self) -> EC2Client:
        return boto3.client(
            "ec2",
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id="judge",
            aws_secret_access_key="judge",
        )

    def reset(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST", "/moto-api/reset")
        assert connection.getresponse().status == 200
        connection.close()

    def flags(self, **others: str) -> list[str]:
        """Flags that `create` needs for this emulator; others are added by flag name, such as `root_size="20"`."""
        values = {"endpoint": self.url, "region": REGION, "zone": ZONE, "ami": IMAGE} | others
        return [f"--amazonec2-{name.replace('_', '-')}={text}" for name, text in values.items()]

    def instances(self) -> list[InstanceTypeDef]:
        """Instances that are not terminated."""
        return [
            instance
            for reservation in self.client.describe_instances()["Reservations"]
            for instance in reservation["Instances"]
            if instance["State"]["Name"] not in ("shutting-down", "terminated")
        ]

    def key_pairs(self) -> list[str]:
        return [pair["KeyName"] for pair in self.client.describe_key_pairs()["KeyPairs"]]

    def groups(self) -> list[str]:
        """Security groups except the default one of each VPC."""
        groups = self.client.describe_security_groups()["SecurityGroups"]
        return [group["GroupName"] for group in groups if group["GroupName"] != "default"]

    def volumes(self) -> list[str]:
        return [volume["VolumeId"] for volume in self.client.describe_volumes()["Volumes"]]

    def leftovers(self) -> dict[str, Any]:
        """Resources of deleted machines that still exist; empty if cleanup is complete."""
        everything = {
            "instances": [instance["InstanceId"] for instance in self.instances()],
            "key pairs": self.key_pairs(),
            "security groups": self.groups(),
            "volumes": self.volumes(),
        }
        return {resource: found for resource, found in everything.items() if found}
