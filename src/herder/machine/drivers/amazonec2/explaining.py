"""What the cloud refuses, in words that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from herder.machine.drivers.amazonec2 import settings
from herder.machine.drivers.amazonec2.options import PREFIX
from herder.machine.drivers.amazonec2.settings import Config
from herder.machine.errors import MachineError, Unreachable

_CREDENTIALS = (
    "check the cloud credential, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, that the key is active and belongs to"
    " this cloud, and that the clock of this host is right"
)
_QUOTA = "ask for a larger quota at Service Quotas, choose another --{flag}instance-type or --{flag}region, or remove"
_QUOTA = f"{_QUOTA} what is not needed"
_CAPACITY = "choose another --{flag}zone or --{flag}instance-type, or try again later"
_THROTTLED = "create fewer machines at once, or raise --{flag}retries"
_IMAGE = "images are named differently in each region: set --{flag}ami to one of this region that the account may use"

_ADVICE = {
    "AuthFailure": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "MissingAuthenticationToken": _CREDENTIALS,
    "RequestExpired": "the session token is too old, or the clock of this host is wrong: get a new token",
    "ExpiredToken": "the session token is too old: get a new one",
    "ExpiredTokenException": "the session token is too old: get a new one",
    "Blocked": "the account is blocked: ask AWS support",
    "PendingVerification": "the account is being verified by AWS: try again in some hours",
    "OptInRequired": "enable the region for the account, or accept the terms of the image in the AWS Marketplace",
    "InstanceLimitExceeded": _QUOTA,
    "VcpuLimitExceeded": _QUOTA,
    "MaxSpotInstanceCountExceeded": _QUOTA,
    "VolumeLimitExceeded": _QUOTA,
    "AddressLimitExceeded": _QUOTA,
    "NetworkInterfaceLimitExceeded": _QUOTA,
    "SecurityGroupLimitExceeded": "remove a group, ask for a larger quota, or name one with --{flag}security-group",
    "RulesPerSecurityGroupLimitExceeded": "remove rules of the group, or ask for a larger quota",
    "SecurityGroupsPerInterfaceLimitExceeded": "give --{flag}security-group fewer times",
    "InsufficientInstanceCapacity": _CAPACITY,
    "InsufficientHostCapacity": _CAPACITY,
    "InsufficientCapacity": _CAPACITY,
    "InsufficientFreeAddressesInSubnet": "choose another --{flag}subnet-id or --{flag}zone",
    "InsufficientAddressCapacity": _CAPACITY,
    "SpotMaxPriceTooLow": "raise --{flag}spot-price",
    "Unsupported": "choose another --{flag}instance-type or --{flag}zone: not every zone has every type",
    "UnsupportedOperation": "choose another --{flag}instance-type, --{flag}ami or --{flag}zone",
    "InvalidInstanceType": "set --{flag}instance-type to a type that the region has",
    "InvalidAMIID.NotFound": _IMAGE,
    "InvalidAMIID.Malformed": _IMAGE,
    "InvalidAMIID.Unavailable": _IMAGE,
    "InvalidSubnetID.NotFound": "set --{flag}subnet-id to a subnet of this region",
    "InvalidSubnet": "set --{flag}subnet-id to a subnet of this region",
    "InvalidVpcID.NotFound": "set --{flag}vpc-id to a VPC of this region",
    "VPCIdNotSpecified": "set --{flag}vpc-id or --{flag}subnet-id: the account has no default VPC",
    "DefaultVpcDoesNotExist": "set --{flag}vpc-id or --{flag}subnet-id",
    "InvalidKeyPair.NotFound": "set --{flag}keypair-name to a key pair of this region",
    "InvalidKeyPair.Format": "AWS takes RSA and Ed25519 keys: give another with --{flag}ssh-keypath",
    "InvalidKey.Format": "AWS takes RSA and Ed25519 keys: give another with --{flag}ssh-keypath",
    "InvalidGroup.NotFound": "set --{flag}security-group to a group of the VPC",
    "InvalidGroup.InUse": "remove what still uses the group",
    "InvalidBlockDeviceMapping": "check --{flag}root-size, --{flag}volume-type and --{flag}device-name",
    "IncorrectInstanceState": "wait until the instance has come to rest, then try again",
    "OperationNotPermitted": "switch the termination protection of the instance off, then try again",
    "IdempotentParameterMismatch": "remove the machine, then create it again",
    "IdempotentInstanceTerminated": "remove the machine, then create it again",
    "RequestLimitExceeded": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "Unavailable": "AWS is overloaded: try again later",
    "InternalError": "AWS failed: try again, and look at the AWS Health Dashboard if it goes on",
    "ServiceUnavailable": "AWS is overloaded: try again later",
}
_DENIED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")


@contextmanager
def explained(config: Config) -> Iterator[None]:
    """Errors of the library leave as ours."""
    try:
        yield
    except ClientError as error:
        raise _refusal(error, config) from error
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
        raise MachineError(
            "there are no AWS credentials",
            "choose a cloud credential, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or fill ~/.aws/credentials",
        ) from error
    except (ConnectionError, HTTPClientError) as error:
        raise Unreachable(
            f"EC2 does not answer at {config.get('Endpoint') or 'region ' + config['Region']}: {type(error).__name__}",
            f"check the network and its proxies, and --{PREFIX}region and --{PREFIX}endpoint",
        ) from error
    except BotoCoreError as error:
        raise MachineError(f"boto3 cannot ask EC2: {error}") from error


def code_of(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")


def is_refusal(error: ClientError) -> bool:
    """The request was understood and turned down, so that nothing came of it; not so where the cloud itself failed."""
    return 400 <= error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) < 500


def _refusal(error: ClientError, config: Config) -> MachineError:
    code = code_of(error)
    if code in _DENIED:
        return MachineError(
            f"AWS does not let this credential do {error.operation_name} in {config['Region']}",
            f"allow the action ec2:{error.operation_name} in its IAM policy",
        )
    said = error.response.get("Error", {}).get("Message", "").strip().rstrip(".")
    place = f"in {settings.zone_name(config)}" if code.startswith("Insufficient") else f"in {config['Region']}"
    advice = _ADVICE.get(code, "").replace("{flag}", PREFIX)
    return MachineError(f"{error.operation_name} {place} was refused: {said} ({code})", advice)
