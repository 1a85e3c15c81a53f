"""kill -9 at every request to the cloud: nothing is ever made twice, and nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ec2 import Ec2
from tests.unit.machine.amazonec2.interrupting import Program, Wire

CREATION = (
    "DescribeVpcs",
    "DescribeSubnets",
    "DescribeImages",
    "ImportKeyPair",
    "DescribeSecurityGroups",
    "CreateSecurityGroup",
    "DescribeSecurityGroups",
    "AuthorizeSecurityGroupIngress",
    "AuthorizeSecurityGroupEgress",
    "RunInstances",
    "DescribeInstances",
)
REMOVAL = (
    "DescribeInstances",
    "TerminateInstances",
    "DeleteKeyPair",
    "DescribeSecurityGroups",
    "DescribeInstances",
    "DescribeInstances",
    "DeleteSecurityGroup",
)


def moments(actions: tuple[str, ...]) -> list[object]:
    """Before each request; and where it changes something, also after it, before its answer."""
    found = []
    for number, action in enumerate(actions):
        found.append(pytest.param(number, False, id=f"{number}-before-{action}"))
        if not action.startswith("Describe"):
            found.append(pytest.param(number, True, id=f"{number}-after-{action}"))
    return found


@pytest.fixture
def program(wire: Wire, tmp_path: Path) -> Program:
    return Program(wire, tmp_path)


@pytest.fixture
def create(ec2: Ec2, program: Program) -> list[str]:
    return ["create", "--driver=amazonec2", *ec2.flags(endpoint=program.wire.url), "m1"]


REMOVE = ("rm", "-y", "m1")


def assert_one_machine(ec2: Ec2) -> None:
    (instance,) = ec2.instances()
    assert ec2.key_pairs() == [instance["KeyName"]]
    assert ec2.groups() == ["rancher-nodes"]
    assert len(ec2.volumes()) == 1


def test_these_are_all_requests(program: Program, create: list[str]) -> None:
    program.run(*create)
    assert tuple(program.wire.actions) == CREATION
    program.wire.mend()
    program.run(*REMOVE)
    assert tuple(program.wire.actions) == REMOVAL


@pytest.mark.parametrize(("request_number", "delivered"), moments(CREATION))
def test_a_creation_that_was_killed_is_finished(
    ec2: Ec2, program: Program, create: list[str], request_number: int, delivered: bool
) -> None:
    program.kill_at(request_number, *create, delivered=delivered)
    program.run(*create)
    assert_one_machine(ec2)


@pytest.mark.parametrize(("request_number", "delivered"), moments(CREATION))
def test_a_creation_that_was_killed_is_removed(
    ec2: Ec2, program: Program, create: list[str], request_number: int, delivered: bool
) -> None:
    program.kill_at(request_number, *create, delivered=delivered)
    program.run(*REMOVE)
    assert ec2.leftovers() == {}


def test_an_instance_that_somebody_ended_before_it_was_written_down_is_launched_anew(
    ec2: Ec2, program: Program, create: list[str]
) -> None:
    program.kill_at(CREATION.index("RunInstances"), *create, delivered=True)
    (lost,) = ec2.instances()
    ec2.client.terminate_instances(InstanceIds=[lost["InstanceId"]])
    program.run(*create)
    assert_one_machine(ec2)


@pytest.mark.parametrize(("request_number", "delivered"), moments(REMOVAL))
def test_a_removal_that_was_killed_is_finished(
    ec2: Ec2, program: Program, create: list[str], request_number: int, delivered: bool
) -> None:
    program.run(*create)
    program.kill_at(request_number, *REMOVE, delivered=delivered)
    program.run(*REMOVE)
    assert ec2.leftovers() == {}
