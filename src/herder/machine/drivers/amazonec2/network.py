"""Choose VPC, subnet and zone of an instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from herder.machine.drivers.amazonec2 import settings
from herder.machine.drivers.amazonec2.options import PREFIX
from herder.machine.drivers.amazonec2.settings import Config
from herder.machine.errors import MachineError

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import SubnetTypeDef


def choose(client: EC2Client, config: Config) -> None:
    """Fill in VPC and subnet if the flags do not set them."""
    if config["SubnetId"]:
        _check_subnet(client, config)
        return
    config["VpcId"] = config["VpcId"] or _default_vpc(client, config)
    config["SubnetId"] = _subnet_of_zone(client, config)


def _check_subnet(client: EC2Client, config: Config) -> None:
    name = config["SubnetId"]
    found = client.describe_subnets(Filters=[{"Name": "subnet-id", "Values": [name]}])["Subnets"]
    if not found:
        raise MachineError(
            f"subnet {name} not found in {config['Region']}", f"set --{PREFIX}subnet-id to a subnet of this region"
        )
    subnet = found[0]
    if config["VpcId"] not in ("", subnet["VpcId"]):
        raise MachineError(
            f"subnet {name} belongs to {subnet['VpcId']}, not to {config['VpcId']}",
            f"change --{PREFIX}subnet-id or --{PREFIX}vpc-id, or pass only one of them",
        )
    zone = settings.zone_name(config)
    if subnet["AvailabilityZone"] != zone:
        raise MachineError(
            f"subnet {name} is in zone {subnet['AvailabilityZone']}, not in {zone}",
            f"set --{PREFIX}zone={subnet['AvailabilityZone'].removeprefix(config['Region'])}, or another subnet",
        )
    config["VpcId"] = subnet["VpcId"]


def _default_vpc(client: EC2Client, config: Config) -> str:
    found = client.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not found:
        raise MachineError(
            f"the account has no default VPC in {config['Region']}", f"set --{PREFIX}vpc-id or --{PREFIX}subnet-id"
        )
    return found[0]["VpcId"]


def _subnet_of_zone(client: EC2Client, config: Config) -> str:
    found = client.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [config["VpcId"]]}])["Subnets"]
    zone = settings.zone_name(config)
    within = [subnet for subnet in found if subnet["AvailabilityZone"] == zone]
    if not within:
        others = sorted({subnet["AvailabilityZone"] for subnet in found})
        advice = f"it has subnets in {', '.join(others)}: set --{PREFIX}zone" if others else "create one in it"
        raise MachineError(f"{config['VpcId']} has no subnet in zone {zone}", advice)
    return max(within, key=_preference)["SubnetId"]


def _preference(subnet: SubnetTypeDef) -> tuple[bool, int]:
    """Prefer the default subnet of the zone, then the one with most free addresses."""
    return subnet.get("DefaultForAz", False), subnet.get("AvailableIpAddressCount", 0)
