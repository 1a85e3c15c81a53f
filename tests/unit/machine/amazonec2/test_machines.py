"""The lifecycle of EC2 machines, verified in the emulated cloud."""

from __future__ import annotations

import base64
import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from herder.machine.drivers.amazonec2.groups import MADE_BY_US, OPEN_TO_ALL, OPEN_TO_MEMBERS
from tests.support.cloud.ec2 import IMAGE, ZONE, Ec2
from tests.unit.machine.amazonec2.conftest import Command


def record(command: Command, name: str = "m1") -> dict[str, Any]:
    config: dict[str, Any] = json.loads((command.store / "machines" / name / "config.json").read_text())["Driver"]
    return config


def tags_of(thing: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in thing["Tags"]}


def user_data_of(ec2: Ec2) -> bytes:
    (instance,) = ec2.instances()
    answer = ec2.client.describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")
    return base64.b64decode(answer["UserData"]["Value"])


def test_a_machine_is_created_with_its_flags(ec2: Ec2, command: Command) -> None:
    output = command.create(
        *ec2.flags(tags="team,blue,kubernetes.io/cluster/c-1,owned", instance_type="t3.small", http_tokens="required"),
        "--amazonec2-monitoring",
    )
    assert "(m1) Launching instance..." in output
    (instance,) = ec2.instances()
    assert (instance["ImageId"], instance["InstanceType"]) == (IMAGE, "t3.small")
    assert instance["Placement"]["AvailabilityZone"] == ZONE
    assert instance["Monitoring"]["State"] == "enabled"
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    wanted = {"team": "blue", "kubernetes.io/cluster/c-1": "owned"}
    assert tags_of(instance) == {
        "Name": "m1",
        **wanted,
        "herder.io/creation": record(command)["CreationToken"],
    }
    (volume,) = ec2.client.describe_volumes()["Volumes"]
    assert (volume["Size"], volume["VolumeType"], tags_of(volume)) == (16, "gp2", wanted)


def test_the_record_contains_addresses_and_identifiers(ec2: Ec2, command: Command) -> None:
    command.create(*ec2.flags())
    (instance,) = ec2.instances()
    config = record(command)
    assert config["InstanceId"] == instance["InstanceId"]
    assert config["IPAddress"] == instance["PublicIpAddress"]
    assert config["PrivateIPAddress"] == instance["PrivateIpAddress"]
    assert config["KeyName"] == instance["KeyName"]
    assert (config["AccessKey"], config["SecretKey"]) == ("", "")
    assert (config["SSHUser"], config["SSHPort"]) == ("ubuntu", 22)


def test_removal_leaves_nothing_behind(ec2: Ec2, command: Command) -> None:
    command.create(*ec2.flags())
    command("rm", "-y", "m1")
    assert ec2.leftovers() == {}


def test_removing_a_missing_machine_succeeds(ec2: Ec2, command: Command) -> None:
    command.create(*ec2.flags())
    ec2.reset()
    command("rm", "-y", "m1")


def test_a_machine_is_stopped_started_and_restarted(ec2: Ec2, command: Command) -> None:
    command.create(*ec2.flags())
    assert "Running" in command("status", "m1")
    command("stop", "m1")
    assert "Stopped" in command("status", "m1")
    command("start", "m1")
    assert "Running" in command("status", "m1")
    assert record(command)["IPAddress"] == ec2.instances()[0]["PublicIpAddress"] == command("ip", "m1").strip()
    command("restart", "m1")
    command("kill", "m1")
    assert "Stopped" in command("status", "m1")


def test_the_status_of_a_missing_instance_is_not_found(ec2: Ec2, command: Command) -> None:
    command.create(*ec2.flags())
    ec2.client.terminate_instances(InstanceIds=[ec2.instances()[0]["InstanceId"]])
    assert "Not Found" in command("status", "m1", status=4)


# Addresses


@pytest.mark.parametrize(
    ("flag", "public"),
    [("--amazonec2-private-address-only", False), ("--amazonec2-use-private-address", True)],
)
def test_a_machine_can_use_its_private_address(ec2: Ec2, command: Command, flag: str, public: bool) -> None:
    command.create(*ec2.flags(), flag)
    (instance,) = ec2.instances()
    assert bool(instance.get("PublicIpAddress")) is public
    assert command("ip", "m1").strip() == record(command)["IPAddress"] == instance["PrivateIpAddress"]


def subnet_with_ipv6(ec2: Ec2) -> str:
    vpc = ec2.client.create_vpc(CidrBlock="10.7.0.0/16", AmazonProvidedIpv6CidrBlock=True)["Vpc"]
    (block,) = vpc["Ipv6CidrBlockAssociationSet"]
    return ec2.client.create_subnet(
        VpcId=vpc["VpcId"],
        CidrBlock="10.7.1.0/24",
        Ipv6CidrBlock=block["Ipv6CidrBlock"].replace("/56", "/64"),
        AvailabilityZone=ZONE,
    )["Subnet"]["SubnetId"]


def test_a_machine_can_have_ipv4_and_ipv6_addresses(ec2: Ec2, command: Command) -> None:
    command.create(*ec2.flags(subnet_id=subnet_with_ipv6(ec2), ipv6_address_count="1"))
    config = record(command)
    assert ":" in config["IPv6Address"]
    assert command("ip", "m1").strip() == config["IPAddress"] != ""


def test_a_machine_can_have_ipv6_addresses_only(ec2: Ec2, command: Command) -> None:
    command.create(*ec2.flags(subnet_id=subnet_with_ipv6(ec2), ipv6_address_count="1"), "--amazonec2-ipv6-address-only")
    config = record(command)
    assert config["IPAddress"] == ""
    assert command("ip", "m1").strip() == config["IPv6Address"] != ""
    assert "PublicIpAddress" not in ec2.instances()[0]


# User data


def test_user_data_reaches_the_instance(ec2: Ec2, command: Command, tmp_path: Path) -> None:
    (tmp_path / "user").write_text("#cloud-config\npackages: [jq]\n")
    (tmp_path / "script").write_text("#!/bin/sh\necho hello\n")
    output = command.create(
        f"--custom-install-script={tmp_path / 'script'}", *ec2.flags(userdata=str(tmp_path / "user"))
    )
    assert "Custom install script was sent via userdata" in output
    content = user_data_of(ec2)
    assert content.startswith(b"#cloud-config\n")
    assert b"jq" in content
    assert b"/usr/local/custom_script/install.sh" in content


def test_large_user_data_is_compressed(ec2: Ec2, command: Command, tmp_path: Path) -> None:
    large = b"#cloud-config\n" + b"# much of the same\n" * 2000
    (tmp_path / "user").write_bytes(large)
    command.create(*ec2.flags(userdata=str(tmp_path / "user")))
    assert gzip.decompress(user_data_of(ec2)) == large


# Keys


def test_a_key_of_the_user_is_imported(ec2: Ec2, command: Command, tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-rsa", key_size=2048)
    (tmp_path / "key").write_bytes(key.export_private_key("pkcs1-pem"))
    command.create(*ec2.flags(ssh_keypath=str(tmp_path / "key")))
    files = command.store / "machines" / "m1"
    assert (files / "id_rsa").read_bytes() == (tmp_path / "key").read_bytes()
    assert (files / "id_rsa.pub").read_bytes() == key.export_public_key()
    command("rm", "-y", "m1")
    assert ec2.key_pairs() == []


def test_a_record_does_not_name_a_file_of_the_host_as_its_key(ec2: Ec2, command: Command, tmp_path: Path) -> None:
    """Editors of the state Secret of a machine that is being created could read the key there."""
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "key")
    command.create(*ec2.flags())
    files = command.store / "machines" / "m1"
    (files / "id_rsa").unlink()
    found = json.loads((files / "config.json").read_text())
    found["Driver"] |= {"InstanceId": "", "CreationToken": "other", "SSHPrivateKeyPath": str(tmp_path / "key")}
    found["Herder"]["Phase"] = "creating"
    (files / "config.json").write_text(json.dumps(found))
    assert "names the file of an SSH key" in command.create(*ec2.flags(), status=1)
    assert not (files / "id_rsa").exists()


def test_an_existing_key_pair_is_kept(ec2: Ec2, command: Command, tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(tmp_path / "key")
    ec2.client.import_key_pair(KeyName="mine", PublicKeyMaterial=key.export_public_key())
    command.create(*ec2.flags(ssh_keypath=str(tmp_path / "key"), keypair_name="mine"))
    assert ec2.instances()[0]["KeyName"] == "mine"
    command("rm", "-y", "m1")
    assert ec2.leftovers() == {"key pairs": ["mine"]}


# Security groups


def ports(rules: list[Any], source: str) -> set[tuple[str, int, int]]:
    return {(rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in rules if rule[source]}


def test_the_security_group_has_the_rules_that_nodes_need(ec2: Ec2, command: Command) -> None:
    command.create(*ec2.flags(), "--amazonec2-open-port=53/udp")
    (group,) = ec2.client.describe_security_groups(GroupNames=["rancher-nodes"])["SecurityGroups"]
    assert MADE_BY_US in tags_of(group)
    everyone = {*OPEN_TO_ALL, ("udp", 53, 53)}
    assert ports(group["IpPermissions"], "IpRanges") == everyone
    assert ports(group["IpPermissions"], "Ipv6Ranges") == everyone
    assert ports(group["IpPermissions"], "UserIdGroupPairs") == set(OPEN_TO_MEMBERS)
    assert any(rule["Ipv6Ranges"] for rule in group["IpPermissionsEgress"])


def test_concurrent_machines_share_a_group_and_the_last_one_deletes_it(
    ec2: Ec2, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"m{number}" for number in range(5)]

    def run_concurrently(*argument_lists: list[str]) -> None:
        with ThreadPoolExecutor(len(argument_lists)) as pool:
            statuses = list(pool.map(command.status, argument_lists))
        assert statuses == [0] * len(argument_lists), capsys.readouterr()

    run_concurrently(*(["create", "-d=amazonec2", *ec2.flags(), name] for name in names))
    assert len(ec2.instances()) == len(ec2.key_pairs()) == 5
    assert ec2.groups() == ["rancher-nodes"]
    run_concurrently(*(["rm", "-y", name] for name in names[:2]))
    assert ec2.groups() == ["rancher-nodes"]
    run_concurrently(*(["rm", "-y", name] for name in names[2:]))
    assert ec2.leftovers() == {}


def create_group(ec2: Ec2, name: str) -> str:
    (vpc,) = ec2.client.describe_vpcs()["Vpcs"]
    return ec2.client.create_security_group(GroupName=name, Description="mine", VpcId=vpc["VpcId"])["GroupId"]


def test_a_group_of_the_user_is_used_and_kept(ec2: Ec2, command: Command) -> None:
    group = create_group(ec2, "mine")
    command.create(*ec2.flags(security_group="mine"), "--amazonec2-security-group-readonly", "--amazonec2-open-port=80")
    assert [held["GroupId"] for held in ec2.instances()[0]["SecurityGroups"]] == [group]
    (described,) = ec2.client.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    assert described["IpPermissions"] == []
    command("rm", "-y", "m1")
    assert ec2.leftovers() == {"security groups": ["mine"]}


def test_existing_rules_of_a_port_are_kept(ec2: Ec2, command: Command) -> None:
    command.create(*ec2.flags())
    (group,) = ec2.client.describe_security_groups(GroupNames=["rancher-nodes"])["SecurityGroups"]
    ssh: Any = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    ec2.client.revoke_security_group_ingress(
        GroupId=group["GroupId"], IpPermissions=[ssh | {"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    )
    ec2.client.authorize_security_group_ingress(
        GroupId=group["GroupId"], IpPermissions=[ssh | {"IpRanges": [{"CidrIp": "10.0.0.0/8"}]}]
    )
    command.create(*ec2.flags(), name="m2")
    (group,) = ec2.client.describe_security_groups(GroupNames=["rancher-nodes"])["SecurityGroups"]
    sources = [
        source["CidrIp"] for rule in group["IpPermissions"] if rule["FromPort"] == 22 for source in rule["IpRanges"]
    ]
    assert sources == ["10.0.0.0/8"]


# Other ways to launch


def test_a_spot_instance_is_requested(ec2: Ec2, command: Command) -> None:
    command.create(*ec2.flags(tags="team,blue"), "--amazonec2-request-spot-instance")
    (instance,) = ec2.instances()
    assert instance["InstanceLifecycle"] == "spot"
    assert tags_of(instance)["team"] == "blue"
    command("rm", "-y", "m1")
    assert ec2.leftovers() == {}


def test_volumes_are_encrypted(ec2: Ec2, command: Command) -> None:
    command.create(*ec2.flags(root_size="30", volume_type="gp3"), "--amazonec2-encrypt-ebs-volume")
    (volume,) = ec2.client.describe_volumes()["Volumes"]
    assert (volume["Size"], volume["VolumeType"], volume["Encrypted"]) == (30, "gp3", True)


def test_the_vpc_is_derived_from_the_subnet(ec2: Ec2, command: Command) -> None:
    vpc = ec2.client.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.client.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24", AvailabilityZone=ZONE)["Subnet"]["SubnetId"]
    command.create(*ec2.flags(subnet_id=subnet))
    assert ec2.instances()[0]["SubnetId"] == subnet
    assert record(command)["VpcId"] == vpc


@pytest.mark.parametrize(
    ("instance_type", "image"), [("t3.small", "ami-0000000000000bbbb"), ("t4g.small", "ami-0000000000000cccc")]
)
def test_the_default_image_is_the_newest_matching_ubuntu(
    ec2: Ec2, command: Command, instance_type: str, image: str
) -> None:
    command.create(*ec2.flags(ami="", instance_type=instance_type))
    assert ec2.instances()[0]["ImageId"] == record(command)["AMI"] == image
