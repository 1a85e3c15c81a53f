"""Errors of the cloud: the message for the user, and the outcome for the machine."""

from __future__ import annotations

import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.support.cloud.ec2 import Ec2
from tests.unit.machine.amazonec2.conftest import Command
from tests.unit.machine.amazonec2.fault_proxy import FaultProxy


@pytest.mark.parametrize(
    ("action", "code", "advice"),
    [
        ("DescribeVpcs", "AuthFailure", "check the cloud credential"),
        ("DescribeVpcs", "RequestExpired", "get a new session token"),
        ("DescribeVpcs", "OptInRequired", "enable the region for the account"),
        ("DescribeSubnets", "UnauthorizedOperation", "allow the action ec2:DescribeSubnets in its IAM policy"),
        ("DescribeImages", "InvalidAMIID.NotFound", "set --amazonec2-ami to an image of this region"),
    ],
)
def test_a_failed_check_says_what_to_do(
    ec2: Ec2, proxy: FaultProxy, command: Command, action: str, code: str, advice: str
) -> None:
    proxy.reject(action, code, "No.")
    output = command.create(*ec2.flags(endpoint=proxy.url), status=3)
    assert "Error with pre-create check" in output
    assert advice in output
    assert ec2.leftovers() == {}


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("InstanceLimitExceeded", "request a larger quota in Service Quotas, choose another --amazonec2-instance-type"),
        ("VcpuLimitExceeded", "request a larger quota"),
        ("InsufficientInstanceCapacity", "choose another --amazonec2-zone or --amazonec2-instance-type"),
        ("UnauthorizedOperation", "allow the action ec2:RunInstances in its IAM policy"),
        ("Unsupported", "choose another --amazonec2-instance-type or --amazonec2-zone"),
        ("SpotMaxPriceTooLow", "raise --amazonec2-spot-price"),
        ("InvalidSomethingNew", "failed: No (InvalidSomethingNew)"),
    ],
)
def test_a_rejected_launch_says_what_to_do_and_leaves_nothing_behind(
    ec2: Ec2, proxy: FaultProxy, command: Command, code: str, advice: str
) -> None:
    proxy.reject("RunInstances", code, "No.")
    assert advice in command.create(*ec2.flags(endpoint=proxy.url), status=1)
    command("rm", "-y", "m1")
    assert ec2.leftovers() == {}


def test_a_missing_permission_is_named(ec2: Ec2, proxy: FaultProxy, command: Command) -> None:
    denied = "User: arn:aws:iam::1:user/u is not authorized to perform: iam:PassRole on resource: r. Encoded: Xyz"
    proxy.reject("RunInstances", "UnauthorizedOperation", denied)
    output = command.create(*ec2.flags(endpoint=proxy.url), status=1)
    assert "allow the action iam:PassRole in its IAM policy" in output
    assert "Xyz" not in output


def test_a_rejected_launch_is_retried_by_the_next_create(ec2: Ec2, proxy: FaultProxy, command: Command) -> None:
    proxy.reject("RunInstances", "InsufficientInstanceCapacity", "None left.")
    command.create(*ec2.flags(endpoint=proxy.url), status=1)
    command.create(*ec2.flags(endpoint=proxy.url))
    assert len(ec2.instances()) == len(ec2.key_pairs()) == 1


def test_a_throttled_request_is_retried(ec2: Ec2, proxy: FaultProxy, command: Command) -> None:
    proxy.reject("DescribeVpcs", "RequestLimitExceeded", "Slower.", status=503, times=2)
    command.create(*ec2.flags(endpoint=proxy.url))
    assert proxy.actions.count("DescribeVpcs") == 3


def test_persistent_throttling_is_reported(ec2: Ec2, proxy: FaultProxy, command: Command) -> None:
    proxy.reject("DescribeVpcs", "RequestLimitExceeded", "Slower.", status=503, times=2)
    output = command.create(*ec2.flags(endpoint=proxy.url, retries="1"), status=3)
    assert "create fewer machines at once, or raise --amazonec2-retries" in output


def test_a_concurrently_deleted_group_is_created_again(ec2: Ec2, proxy: FaultProxy, command: Command) -> None:
    def removed() -> None:
        (group,) = ec2.client.describe_security_groups(GroupNames=["rancher-nodes"])["SecurityGroups"]
        ec2.client.delete_security_group(GroupId=group["GroupId"])

    proxy.call_before("AuthorizeSecurityGroupEgress", removed)
    proxy.call_before("RunInstances", removed)
    command.create(*ec2.flags(endpoint=proxy.url))
    (instance,) = ec2.instances()
    assert [group["GroupName"] for group in instance["SecurityGroups"]] == ["rancher-nodes"] == ec2.groups()


def test_a_machine_is_removed_if_its_group_cannot_be_deleted(ec2: Ec2, proxy: FaultProxy, command: Command) -> None:
    command.create(*ec2.flags(endpoint=proxy.url))
    proxy.reject("DeleteSecurityGroup", "UnauthorizedOperation", "No.")
    assert "stays" in command("rm", "-y", "m1")
    assert ec2.leftovers() == {"security groups": ["rancher-nodes"]}


def test_an_instance_that_cannot_be_terminated_keeps_its_record(ec2: Ec2, proxy: FaultProxy, command: Command) -> None:
    command.create(*ec2.flags(endpoint=proxy.url))
    proxy.reject("TerminateInstances", "OperationNotPermitted", "Protected.")
    assert "disable the termination protection of the instance" in command("rm", "-y", "m1", status=1)
    assert "Running" in command("status", "m1")
    command("rm", "-y", "m1")
    assert ec2.leftovers() == {}


# Errors before or at the first request


def test_an_unknown_region_is_rejected(ec2: Ec2, command: Command) -> None:
    output = command.create("--amazonec2-region=us-east-9", status=3)
    assert 'does not know the AWS region \\"us-east-9\\"' in output
    assert "us-east-1, us-east-2" in output


def test_an_unreachable_endpoint_is_reported(ec2: Ec2, command: Command) -> None:
    with socket.socket() as closed:  # bound and not listening, so that no other process gets the port
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        output = command.create(*ec2.flags(endpoint=url, retries="-1"), status=3)
    assert f"EC2 does not answer at {url}" in output
    assert "check the network, the proxy settings, and --amazonec2-region and --amazonec2-endpoint" in output


class OtherService(BaseHTTPRequestHandler):
    """A service on the host that is not EC2."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"what only this host may know")

    def log_message(self, format: str, *args: object) -> None: ...


def test_the_response_of_another_service_is_not_printed(ec2: Ec2, command: Command) -> None:
    """Users choose the endpoint and see error messages: these must not reveal responses of internal services."""
    with HTTPServer(("127.0.0.1", 0), OtherService) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        output = command.create(*ec2.flags(endpoint=url, retries="-1"), status=3)
        server.shutdown()
        thread.join()
    assert f"{url} does not answer as EC2 does" in output
    assert "only this host" not in output


def test_an_endpoint_with_credentials_is_rejected_and_not_printed(ec2: Ec2, command: Command) -> None:
    output = command.create(*ec2.flags(endpoint="http://me:hidden@127.0.0.1"), status=3)
    assert "--amazonec2-endpoint is not a host name or a URL without credentials" in output
    assert "hidden" not in output


def test_missing_credentials_are_reported(
    ec2: Ec2, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY", "AWS_SECRET_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    output = command.create(*ec2.flags(), status=3)
    assert "no AWS credentials found; select a cloud credential" in output


def test_credentials_are_never_printed(ec2: Ec2, proxy: FaultProxy, command: Command) -> None:
    proxy.reject("DescribeVpcs", "AuthFailure", "AWS was not able to validate the provided access credentials")
    typed = ("--amazonec2-access-key=AKHIDDEN", "--amazonec2-secret-key=SKHIDDEN", "--amazonec2-session-token=STHIDDEN")
    assert "HIDDEN" not in command.create(*ec2.flags(endpoint=proxy.url), *typed, status=3)


def test_a_missing_default_vpc_is_reported(ec2: Ec2, command: Command) -> None:
    (vpc,) = ec2.client.describe_vpcs()["Vpcs"]
    for subnet in ec2.client.describe_subnets()["Subnets"]:
        ec2.client.delete_subnet(SubnetId=subnet["SubnetId"])
    ec2.client.delete_vpc(VpcId=vpc["VpcId"])
    output = command.create(*ec2.flags(), status=3)
    assert "the account has no default VPC in us-east-1; set --amazonec2-vpc-id or --amazonec2-subnet-id" in output


def test_a_zone_without_a_subnet_is_reported(ec2: Ec2, command: Command) -> None:
    output = command.create(*ec2.flags(zone="us-east-1z"), status=3)
    assert "has no subnet in zone us-east-1z; it has subnets in us-east-1a, us-east-1b" in output


def test_a_subnet_of_another_zone_is_rejected(ec2: Ec2, command: Command) -> None:
    (subnet,) = ec2.client.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1b"]}])[
        "Subnets"
    ]
    output = command.create(*ec2.flags(subnet_id=subnet["SubnetId"]), status=3)
    assert "is in zone us-east-1b, not in us-east-1a; set --amazonec2-zone=b, or another subnet" in output


def test_a_subnet_of_another_vpc_is_rejected(ec2: Ec2, command: Command) -> None:
    vpc = ec2.client.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.client.describe_subnets()["Subnets"][0]["SubnetId"]
    output = command.create(*ec2.flags(subnet_id=subnet, vpc_id=vpc), status=3)
    assert f"not to {vpc}; change --amazonec2-subnet-id or --amazonec2-vpc-id" in output


def test_an_image_of_another_region_is_rejected(ec2: Ec2, command: Command) -> None:
    output = command.create(*ec2.flags(ami="ami-0123456789abcdef0"), status=3)
    assert "image IDs differ between regions" in output


def test_a_root_volume_smaller_than_the_image_is_rejected(ec2: Ec2, command: Command) -> None:
    output = command.create(*ec2.flags(root_size="1"), status=3)
    assert "GiB, not 1; set --amazonec2-root-size=" in output


def test_a_missing_read_only_group_is_reported(ec2: Ec2, command: Command) -> None:
    output = command.create(*ec2.flags(security_group="mine"), "--amazonec2-security-group-readonly", status=3)
    assert "has no security group mine; create it, select another" in output


def test_user_data_above_the_limit_is_rejected(ec2: Ec2, command: Command, tmp_path: Path) -> None:
    import random

    noise = random.Random(1).randbytes(20_000).hex()
    (tmp_path / "user").write_text(f"#cloud-config\n# {noise}\n")
    output = command.create(*ec2.flags(userdata=str(tmp_path / "user")), status=3)
    assert "the EC2 limit of 16384; reduce the file of --amazonec2-userdata" in output


def test_an_invalid_private_key_is_rejected(ec2: Ec2, command: Command, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hidden")
    output = command.create(*ec2.flags(ssh_keypath=str(tmp_path / "key")), status=3)
    assert "is not a usable SSH private key; pass a private key without a passphrase" in output
    assert "hidden" not in output
    assert "cannot read" in command.create(*ec2.flags(ssh_keypath=str(tmp_path / "none")), status=3)


def test_missing_boto3_reports_the_install_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    package = "herder.machine.drivers.amazonec2"
    for module in ("client", "server"):
        monkeypatch.delitem(sys.modules, f"{package}.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)
    output = command.create(status=3)
    assert "driver amazonec2 requires the Python package boto3; run: pip install 'herder[amazonec2]'" in output
