"""Build the RunInstances request."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, cast

from herder.machine.driver import Machine
from herder.machine.drivers.amazonec2 import images, settings
from herder.machine.drivers.amazonec2.options import PREFIX
from herder.machine.drivers.amazonec2.settings import CREATION_TOKEN, Config
from herder.machine.errors import MachineError

if TYPE_CHECKING:
    from mypy_boto3_ec2.literals import InstanceTypeType, ResourceTypeType
    from mypy_boto3_ec2.type_defs import (
        ImageTypeDef,
        InstanceMetadataOptionsRequestTypeDef,
        InstanceNetworkInterfaceSpecificationUnionTypeDef,
        RunInstancesRequestTypeDef,
        SpotMarketOptionsTypeDef,
        TagSpecificationUnionTypeDef,
    )

CREATION_TAG = "herder.io/creation"
"""Tag of the instance from the start, by which an instance is found whose ID was not recorded."""

LARGEST_USER_DATA = 16 << 10


def request(machine: Machine, image: ImageTypeDef) -> RunInstancesRequestTypeDef:
    """Build the request; the client token makes it idempotent."""
    config = machine.config
    asked: RunInstancesRequestTypeDef = {
        "ClientToken": config[CREATION_TOKEN],
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": config["AMI"],
        "InstanceType": cast("InstanceTypeType", config["InstanceType"]),
        "KeyName": config["KeyName"],
        "Placement": {"AvailabilityZone": settings.zone_name(config)},
        "NetworkInterfaces": [_interface(config)],
        "BlockDeviceMappings": images.disks(image, config),
        "Monitoring": {"Enabled": config["Monitoring"]},
        "EbsOptimized": config["UseEbsOptimizedInstance"],
        "MetadataOptions": _metadata_options(config),
        "TagSpecifications": _tags(machine),
    }
    profile = config["IamInstanceProfile"]
    if profile:
        asked["IamInstanceProfile"] = {"Arn": profile} if profile.startswith("arn:") else {"Name": profile}
    if machine.user_data:
        asked["UserData"] = cast(str, user_data(machine.user_data))  # bytes are taken too, which the types do not say
    if config["RequestSpotInstance"]:
        asked["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": _spot_options(config)}
    return asked


def user_data(content: bytes) -> bytes:
    """Return user data as is, or gzipped if it is too large, deterministically; cloud-init accepts both."""
    fitting = content if len(content) <= LARGEST_USER_DATA else gzip.compress(content, mtime=0)
    if len(fitting) > LARGEST_USER_DATA:
        raise MachineError(
            f"the compressed user data has {len(fitting)} bytes, more than the EC2 limit of {LARGEST_USER_DATA}",
            f"reduce the file of --{PREFIX}userdata, or download large content at boot",
        )
    return fitting


def _interface(config: Config) -> InstanceNetworkInterfaceSpecificationUnionTypeDef:
    interface: InstanceNetworkInterfaceSpecificationUnionTypeDef = {
        "DeviceIndex": 0,
        "SubnetId": config["SubnetId"],
        "Groups": config["SecurityGroupIds"],
        "AssociatePublicIpAddress": not (config["PrivateIPOnly"] or config["Ipv6AddressOnly"]),
        "DeleteOnTermination": True,
    }
    if config["Ipv6AddressCount"]:
        interface["Ipv6AddressCount"] = config["Ipv6AddressCount"]
    if config["EnablePrimaryIpv6"]:
        interface["PrimaryIpv6"] = True
    return interface


def _metadata_options(config: Config) -> InstanceMetadataOptionsRequestTypeDef:
    options: InstanceMetadataOptionsRequestTypeDef = {}
    if config["HttpEndpoint"]:
        options["HttpEndpoint"] = config["HttpEndpoint"]
    if config["HttpTokens"]:
        options["HttpTokens"] = config["HttpTokens"]
    if config["HttpProtocolIpv6"]:
        options["HttpProtocolIpv6"] = config["HttpProtocolIpv6"]
    return options


def _tags(machine: Machine) -> list[TagSpecificationUnionTypeDef]:
    """Tag everything with the user's tags, and the instance with its name and creation token."""
    wanted = settings.tags(machine.config)
    own = {"Name": machine.name, **wanted, CREATION_TAG: machine.config[CREATION_TOKEN]}
    tagged: list[tuple[ResourceTypeType, dict[str, str]]] = [("instance", own)]
    if wanted:
        tagged += [("volume", wanted), ("network-interface", wanted)]
    return [
        {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        for kind, tags in tagged
    ]


def _spot_options(config: Config) -> SpotMarketOptionsTypeDef:
    options: SpotMarketOptionsTypeDef = {"SpotInstanceType": "one-time", "MaxPrice": config["SpotPrice"]}
    if config["BlockDurationMinutes"]:
        options["BlockDurationMinutes"] = config["BlockDurationMinutes"]
    return options
