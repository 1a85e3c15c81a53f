"""The AMI of an instance, and its block devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from herder.machine.drivers.amazonec2.options import PREFIX
from herder.machine.drivers.amazonec2.settings import Config
from herder.machine.errors import MachineError

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import BlockDeviceMappingTypeDef, EbsBlockDeviceTypeDef, ImageTypeDef

# Canonical's accounts, by AWS partition. The release is rancher-machine's default.
_CANONICAL = {"cn-": "837727238323", "us-gov-": "513442679011", "": "099720109477"}
_UBUNTU = "ubuntu/images/hvm-ssd*/ubuntu-jammy-22.04-{}-server-*"
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}


def find(client: EC2Client, config: Config) -> ImageTypeDef:
    """Find the AMI of the flags, or a default; record its name and root device."""
    if not config["AMI"]:
        config["AMI"] = _newest_ubuntu(client, config)
    images = client.describe_images(ImageIds=[config["AMI"]])["Images"]
    if not images:
        raise MachineError(
            f"image {config['AMI']} not found in {config['Region']}",
            f"image IDs differ between regions: set --{PREFIX}ami to an image of this region",
        )
    image = images[0]
    config["DeviceName"] = config["DeviceName"] or image.get("RootDeviceName", "")
    _check_root_size(image, config)
    return image


def disks(image: ImageTypeDef, config: Config) -> list[BlockDeviceMappingTypeDef]:
    """Return the block devices as the flags request; all are deleted with the instance."""
    mappings: list[BlockDeviceMappingTypeDef] = []
    for mapping in image.get("BlockDeviceMappings", []):
        if "Ebs" in mapping:
            device = mapping["DeviceName"]
            volume = _volume(mapping["Ebs"], config, is_root=device == config["DeviceName"])
            mappings.append({"DeviceName": device, "Ebs": volume})
    return mappings


def _volume(given: EbsBlockDeviceTypeDef, config: Config, *, is_root: bool) -> EbsBlockDeviceTypeDef:
    volume: EbsBlockDeviceTypeDef = {"DeleteOnTermination": True}
    if "SnapshotId" in given:
        volume["SnapshotId"] = given["SnapshotId"]
    if is_root:
        volume["VolumeSize"] = config["RootSize"]
        volume["VolumeType"] = config["VolumeType"] or given.get("VolumeType", "gp2")
    else:
        if "VolumeSize" in given:
            volume["VolumeSize"] = given["VolumeSize"]
        volume["VolumeType"] = given.get("VolumeType", "gp2")
    if volume["VolumeType"] == given.get("VolumeType"):  # tuning for another volume type does not apply
        if "Iops" in given:
            volume["Iops"] = given["Iops"]
        if "Throughput" in given:
            volume["Throughput"] = given["Throughput"]
    if config["EncryptEbsVolume"]:
        volume["Encrypted"] = True
        if config["KmsKeyId"]:
            volume["KmsKeyId"] = config["KmsKeyId"]
    return volume


def _newest_ubuntu(client: EC2Client, config: Config) -> str:
    owner = next(account for region, account in _CANONICAL.items() if config["Region"].startswith(region))
    name = _UBUNTU.format(_architecture(client, config))
    images = client.describe_images(
        Owners=[owner], Filters=[{"Name": "name", "Values": [name]}, {"Name": "state", "Values": ["available"]}]
    )["Images"]
    if not images:
        raise MachineError(f"{config['Region']} has no Ubuntu image from Canonical", f"set --{PREFIX}ami to an image")
    return max(images, key=lambda image: image.get("CreationDate", ""))["ImageId"]


def _architecture(client: EC2Client, config: Config) -> str:
    types = client.describe_instance_types(InstanceTypes=[config["InstanceType"]])["InstanceTypes"]
    supported = types[0].get("ProcessorInfo", {}).get("SupportedArchitectures", []) if types else []
    for architecture, name in _ARCHITECTURES.items():
        if architecture in supported:
            return name
    raise MachineError(
        f"no image is known for instance type {config['InstanceType']}", f"set --{PREFIX}ami to a suitable image"
    )


def _check_root_size(image: ImageTypeDef, config: Config) -> None:
    for mapping in image.get("BlockDeviceMappings", []):
        least = mapping.get("Ebs", {}).get("VolumeSize", 0)
        if mapping.get("DeviceName") == config["DeviceName"] and least > config["RootSize"]:
            raise MachineError(
                f"image {config['AMI']} needs a root volume of {least} GiB, not {config['RootSize']}",
                f"set --{PREFIX}root-size={least} or more",
            )
