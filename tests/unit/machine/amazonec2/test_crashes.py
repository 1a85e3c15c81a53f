"""kill -9 at every request to the cloud: nothing is created twice, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cloud.ec2 import Ec2
from tests.unit.machine.amazonec2.fault_proxy import FaultProxy, Program

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


def kill_points(actions: tuple[str, ...]) -> list[object]:
    """Return a point before each request and, if it changes something, one between request and response."""
    points = []
    for number, action in enumerate(actions):
        points.append(pytest.param(number, False, id=f"{number}-before-{action}"))
        if not action.startswith("Describe"):
            points.append(pytest.param(number, True, id=f"{number}-after-{action}"))
    return points


@pytest.fixture
def program(proxy: FaultProxy, tmp_path: Path) -> Program:
    return Program(proxy, tmp_path)


@pytest.fixture
def create(ec2: Ec2, program: Program) -> list[str]:
    return ["create", "--driver=amazonec2", *ec2.flags(endpoint=program.proxy.url), "m1"]


REMOVE = ("rm", "-y", "m1")


def assert_one_machine(ec2: Ec2) -> None:
    (instance,) = ec2.instances()
    assert ec2.key_pairs() == [instance["KeyName"]]
    assert ec2.groups() == ["rancher-nodes"]
    assert len(ec2.volumes()) == 1


def test_the_request_lists_are_complete(program: Program, create: list[str]) -> None:
    program.run(*create)
    assert tuple(program.proxy.actions) == CREATION
    program.proxy.reset()
    program.run(*REMOVE)
    assert tuple(program.proxy.actions) == REMOVAL


@pytest.mark.parametrize(("request_number", "delivered"), kill_points(CREATION))
def test_a_killed_creation_is_finished(
    ec2: Ec2, program: Program, create: list[str], request_number: int, delivered: bool
) -> None:
    program.kill_at(request_number, *create, delivered=delivered)
    program.run(*create)
    assert_one_machine(ec2)


@pytest.mark.parametrize(("request_number", "delivered"), kill_points(CREATION))
def test_a_killed_creation_is_removed(
    ec2: Ec2, program: Program, create: list[str], request_number: int, delivered: bool
) -> None:
    program.kill_at(request_number, *create, delivered=delivered)
    program.run(*REMOVE)
    assert ec2.leftovers() == {}


def test_an_instance_terminated_before_it_was_recorded_is_launched_again(
    ec2: Ec2, program: Program, create: list[str]
) -> None:
    program.kill_at(CREATION.index("RunInstances"), *create, delivered=True)
    (lost,) = ec2.instances()
    ec2.client.terminate_instances(InstanceIds=[lost["InstanceId"]])
    program.run(*create)
    assert_one_machine(ec2)


@pytest.mark.parametrize(("request_number", "delivered"), kill_points(REMOVAL))
def test_a_killed_removal_is_finished(
    ec2: Ec2, program: Program, create: list[str], request_number: int, delivered: bool
) -> None:
    program.run(*create)
    program.kill_at(request_number, *REMOVE, delivered=delivered)
    program.run(*REMOVE)
    assert ec2.leftovers() == {}
