"""Flags of the amazonec2 driver, and the field of the Go driver's record for each."""

from __future__ import annotations

from dataclasses import dataclass

from herder.api.machines.drivers.flags import Flag, FlagType, Value

PREFIX = "amazonec2-"
DEFAULT_GROUP = "rancher-nodes"

_BY_NAME = "AWS_…"  # environment variable derived from the flag's name
_TYPES: dict[type, FlagType] = {
    str: FlagType.STRING,
    int: FlagType.INT,
    bool: FlagType.BOOL,
    tuple: FlagType.LIST,
}


@dataclass(frozen=True, slots=True)
class Option:
    flag: Flag
    field: str


def _option(name: str, field: str, usage: str, default: Value = "", env: str = _BY_NAME) -> Option:
    variable = "AWS_" + name.upper().replace("-", "_") if env == _BY_NAME else env
    return Option(Flag(PREFIX + name, usage, _TYPES[type(default)], default, variable), field)


CREDENTIALS = (
    _option("access-key", "AccessKey", "Access key ID of the AWS account", env="AWS_ACCESS_KEY_ID"),
    _option("secret-key", "SecretKey", "Secret access key of the AWS account", env="AWS_SECRET_ACCESS_KEY"),
    _option("session-token", "SessionToken", "Session token that belongs to a temporary access key"),
)

SETTINGS = (
    _option("ami", "AMI", "AMI to boot (default: the newest Ubuntu 22.04 image of the region)"),
    _option("region", "Region", "Region to create the instance in", "us-east-1", env="AWS_DEFAULT_REGION"),
    _option("vpc-id", "VpcId", "VPC to create the instance in (default: the default VPC of the region)"),
    _option("zone", "Zone", "Availability zone: its letter in the region, or its full name", "a"),
    _option("subnet-id", "SubnetId", "Subnet of the VPC (default: the default subnet of the zone)"),
    _option(
        "security-group-readonly",
        "SecurityGroupReadOnly",
        "Use existing security groups without creating groups or adding rules",
        False,
    ),
    _option("security-group", "SecurityGroupNames", "Security group of the VPC, by name", (DEFAULT_GROUP,)),
    _option("open-port", "OpenPorts", "Port to open to the Internet, such as 8080 or 53/udp", (), env=""),
    _option("tags", "Tags", "Tags for instance, volumes and network interface (key1,value1,key2,value2)"),
    _option("instance-type", "InstanceType", "Instance type", "t2.micro"),
    _option("device-name", "DeviceName", "Name of the root device (default: the root device of the image)"),
    _option("root-size", "RootSize", "Size of the root volume in GiB", 16),
    _option("volume-type", "VolumeType", "EBS type of the root volume", "gp2"),
    _option("iam-instance-profile", "IamInstanceProfile", "IAM instance profile", env="AWS_INSTANCE_PROFILE"),
    _option("ssh-user", "SSHUser", "SSH user of the image", "ubuntu"),
    _option("request-spot-instance", "RequestSpotInstance", "Request a spot instance", False, env=""),
    _option("spot-price", "SpotPrice", "Highest price for a spot instance, in dollars per hour", "0.50", env=""),
    _option("block-duration-minutes", "BlockDurationMinutes", "Duration of a spot instance, in minutes", 0, env=""),
    _option("private-address-only", "PrivateIPOnly", "Do not assign a public IP address", False, env=""),
    _option("use-private-address", "UsePrivateIP", "Connect to the private IP address of the instance", False, env=""),
    _option("monitoring", "Monitoring", "Enable detailed CloudWatch monitoring", False, env=""),
    _option("use-ebs-optimized-instance", "UseEbsOptimizedInstance", "Optimize the instance for EBS", False, env=""),
    _option("ssh-keypath", "SSHPrivateKeyPath", "Path of the SSH private key (default: a new key)"),
    _option("keypair-name", "KeyName", "Key pair that AWS has already; needs --amazonec2-ssh-keypath"),
    _option("retries", "RetryCount", "Number of retries of a request; -1 for none", 5, env=""),
    _option("endpoint", "Endpoint", "Custom EC2 endpoint, a host name or URL"),
    _option("insecure-transport", "DisableSSL", "Use HTTP for an endpoint that is a host name", False),
    _option("userdata", "UserDataFile", "File with cloud-init user data"),
    _option("encrypt-ebs-volume", "EncryptEbsVolume", "Encrypt the volumes", False),
    _option("kms-key", "KmsKeyId", "KMS key to encrypt the volumes with"),
    _option("http-endpoint", "HttpEndpoint", "Instance metadata service: enabled or disabled"),
    _option("http-tokens", "HttpTokens", "Tokens for instance metadata: optional or required"),
    _option("http-protocol-ipv6", "HttpProtocolIpv6", "Instance metadata by IPv6: enabled or disabled", "disabled"),
    _option("ipv6-address-count", "Ipv6AddressCount", "Number of IPv6 addresses of the instance", 0),
    _option("enable-primary-ipv6", "EnablePrimaryIpv6", "Assign the first IPv6 address as the primary address", False),
    _option("ipv6-address-only", "Ipv6AddressOnly", "Assign only IPv6 addresses, for an IPv6-only subnet", False),
)

FLAGS = tuple(option.flag for option in (*CREDENTIALS, *SETTINGS))
