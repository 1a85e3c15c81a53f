"""EC2 machines of the real rancher-machine and of Herder, each taken over by the other, on emulated EC2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from herder.api.machines.drivers.flags import FlagType
from herder.machine.drivers import create_flags
from herder.machine.probing import read_help
from tests.support.cloud.ec2 import KEYS, Ec2
from tests.support.peers import peer


@pytest.fixture(scope="module")
def cloud() -> Iterator[Ec2]:
    with Ec2() as cloud:
        yield cloud


@dataclass
class Programs:
    """Both programs with one store, and with the credentials as a Job gets them."""

    store: Path

    def ours(self, *arguments: str) -> str:
        return self._run(sys.executable, "-m", "herder.machine.cli.main", *arguments)

    def go(self, *arguments: str) -> str:
        return self._run(str(peer("rancher-machine")), *arguments)

    def _run(self, *command: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.store), "MACHINE_STORAGE_PATH": str(self.store)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment | KEYS, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def driver_record(self) -> dict[str, object]:
        record: dict[str, object] = json.loads((self.store / "machines/m1/config.json").read_text())["Driver"]
        return record


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@pytest.fixture
def creation(cloud: Ec2, tmp_path: Path) -> list[str]:
    """Arguments that both programs accept; the emulator does not report the default VPC to the Go program."""
    cloud.reset()
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho hello\n")
    (vpc,) = cloud.client.describe_vpcs()["Vpcs"]
    flags = cloud.flags(vpc_id=vpc["VpcId"], tags="team,blue")
    return ["create", "--driver", "amazonec2", "--custom-install-script", str(script), *flags, "m1"]


def test_flags_equal_those_of_the_real_program(programs: Programs) -> None:
    theirs = {
        flag.name: (flag.type, flag.default, flag.env)
        for flag in read_help(programs.go("create", "--driver", "amazonec2", "--help"))
        if flag.name.startswith("amazonec2-")
    }
    ours = {
        flag.name: (
            flag.type,
            () if flag.type is FlagType.LIST else flag.default,
            flag.env,
        )  # help does not show the defaults of lists
        for flag in create_flags("amazonec2") or ()
    }
    assert ours == theirs


def test_herder_takes_over_machines_of_the_real_program(cloud: Ec2, programs: Programs, creation: list[str]) -> None:
    programs.go(*creation)
    (instance,) = cloud.instances()
    assert programs.ours("ip", "m1").strip() == instance["PublicIpAddress"]
    assert programs.ours("status", "m1").strip() == "Running"
    programs.ours("rm", "-y", "--update-config", "m1")
    assert cloud.leftovers() == {}


def test_the_real_program_takes_over_machines_of_herder(cloud: Ec2, programs: Programs, creation: list[str]) -> None:
    programs.ours(*creation)
    (instance,) = cloud.instances()
    assert programs.go("ip", "m1").splitlines()[0] == instance["PublicIpAddress"]
    assert programs.go("status", "m1").splitlines()[0] == "Running"
    programs.go("rm", "-y", "--update-config", "m1")
    assert cloud.leftovers() == {"security groups": ["rancher-nodes"]}  # which it never removes


def test_both_create_the_same_machine_and_record(cloud: Ec2, programs: Programs, creation: list[str]) -> None:
    programs.go(*creation)
    theirs, their_instance = programs.driver_record(), cloud.instances()[0]
    programs.go("rm", "-y", "m1")
    programs.ours(*creation)
    ours, our_instance = programs.driver_record(), cloud.instances()[0]

    own = {"Id", "InstanceId", "KeyName", "IPAddress", "PrivateIPAddress", "SSHKeyPath", "SwarmHost", "UserDataFile"}
    compared = theirs.keys() & ours.keys() - own
    assert {name: ours[name] or None for name in compared} == {name: theirs[name] or None for name in compared}
    for same in ("ImageId", "InstanceType", "SubnetId", "VpcId", "SecurityGroups", "Placement", "MetadataOptions"):
        assert our_instance[same] == their_instance[same], same
    (volume,) = cloud.client.describe_volumes()["Volumes"]
    assert (volume["Size"], volume["VolumeType"]) == (16, "gp2")


def test_later_machines_use_the_existing_security_group(cloud: Ec2, programs: Programs, creation: list[str]) -> None:
    programs.go(*creation)
    (rules,) = cloud.client.describe_security_groups(GroupNames=["rancher-nodes"])["SecurityGroups"]
    programs.ours(*creation[:-1], "m2")
    (rules_now,) = cloud.client.describe_security_groups(GroupNames=["rancher-nodes"])["SecurityGroups"]
    assert rules_now["IpPermissions"] == rules["IpPermissions"]
    programs.ours("rm", "-y", "m1")
    assert cloud.groups() == ["rancher-nodes"]
    programs.ours("rm", "-y", "m2")
    assert cloud.leftovers() == {}
