"""Translate EC2 errors to messages with advice."""

from __future__ import annotations

import re
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
from botocore.parsers import ResponseParserError

from herder.machine.drivers.amazonec2 import settings
from herder.machine.drivers.amazonec2.options import PREFIX
from herder.machine.drivers.amazonec2.settings import Config
from herder.machine.errors import MachineError, Unreachable

_CREDENTIALS = (
    "check the cloud credential, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: the key must be active and belong to"
    " this cloud, and the clock of this host must be correct"
)
_QUOTA = (
    "request a larger quota in Service Quotas, choose another --amazonec2-instance-type or --amazonec2-region, or"
    " delete unused resources"
)
_CAPACITY = "choose another --amazonec2-zone or --amazonec2-instance-type, or try again later"
_THROTTLED = "create fewer machines at once, or raise --amazonec2-retries"
_IMAGE = "image IDs differ between regions: set --amazonec2-ami to an image of this region that the account can use"

_ADVICE = {
    "AuthFailure": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "MissingAuthenticationToken": _CREDENTIALS,
    "RequestExpired": "get a new session token, and check the clock of this host",
    "ExpiredToken": "get a new session token",
    "ExpiredTokenException": "get a new session token",
    "Blocked": "the account is blocked: contact AWS support",
    "PendingVerification": "AWS is verifying the account: try again in a few hours",
    "OptInRequired": "enable the region for the account, or accept the terms of the image in the AWS Marketplace",
    "InstanceLimitExceeded": _QUOTA,
    "VcpuLimitExceeded": _QUOTA,
    "MaxSpotInstanceCountExceeded": _QUOTA,
    "VolumeLimitExceeded": _QUOTA,
    "AddressLimitExceeded": _QUOTA,
    "NetworkInterfaceLimitExceeded": _QUOTA,
    "SecurityGroupLimitExceeded": "delete a group, request a larger quota, or set --amazonec2-security-group",
    "RulesPerSecurityGroupLimitExceeded": "remove rules of the group, or request a larger quota",
    "SecurityGroupsPerInterfaceLimitExceeded": "pass fewer --amazonec2-security-group flags",
    "InsufficientInstanceCapacity": _CAPACITY,
    "InsufficientHostCapacity": _CAPACITY,
    "InsufficientCapacity": _CAPACITY,
    "InsufficientFreeAddressesInSubnet": "choose another --amazonec2-subnet-id or --amazonec2-zone",
    "InsufficientAddressCapacity": _CAPACITY,
    "SpotMaxPriceTooLow": "raise --amazonec2-spot-price",
    "Unsupported": "choose another --amazonec2-instance-type or --amazonec2-zone: not every zone has every type",
    "UnsupportedOperation": "choose another --amazonec2-instance-type, --amazonec2-ami or --amazonec2-zone",
    "InvalidInstanceType": "set --amazonec2-instance-type to a type that the region offers",
    "InvalidAMIID.NotFound": _IMAGE,
    "InvalidAMIID.Malformed": _IMAGE,
    "InvalidAMIID.Unavailable": _IMAGE,
    "InvalidSubnetID.NotFound": "set --amazonec2-subnet-id to a subnet of this region",
    "InvalidSubnet": "set --amazonec2-subnet-id to a subnet of this region",
    "InvalidVpcID.NotFound": "set --amazonec2-vpc-id to a VPC of this region",
    "VPCIdNotSpecified": "set --amazonec2-vpc-id or --amazonec2-subnet-id: the account has no default VPC",
    "DefaultVpcDoesNotExist": "set --amazonec2-vpc-id or --amazonec2-subnet-id",
    "InvalidKeyPair.NotFound": "set --amazonec2-keypair-name to a key pair of this region",
    "InvalidKeyPair.Format": "AWS supports RSA and Ed25519 keys: pass another with --amazonec2-ssh-keypath",
    "InvalidKey.Format": "AWS supports RSA and Ed25519 keys: pass another with --amazonec2-ssh-keypath",
    "InvalidGroup.NotFound": "set --amazonec2-security-group to a group of the VPC",
    "InvalidGroup.InUse": "delete the resources that still use the group",
    "InvalidBlockDeviceMapping": "check --amazonec2-root-size, --amazonec2-volume-type and --amazonec2-device-name",
    "IncorrectInstanceState": "wait until the state of the instance is stable, then try again",
    "OperationNotPermitted": "disable the termination protection of the instance, then try again",
    "IdempotentParameterMismatch": "remove the machine, then create it again",
    "IdempotentInstanceTerminated": "remove the machine, then create it again",
    "RequestLimitExceeded": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "Unavailable": "AWS is overloaded: try again later",
    "InternalError": "AWS failed: try again, and check the AWS Health Dashboard if the error persists",
    "ServiceUnavailable": "AWS is overloaded: try again later",
}
_DENIED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
_DENIED_ACTION = re.compile(r"not authorized to perform: ([\w:-]+)")


@contextmanager
def explained(config: Config) -> Iterator[None]:
    """Convert boto3 errors to MachineError."""
    try:
        yield
    except ClientError as error:
        raise _refusal(error, config) from error
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
        raise MachineError(
            "no AWS credentials found",
            "select a cloud credential, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or create ~/.aws/credentials",
        ) from error
    except (ConnectionError, HTTPClientError) as error:
        raise Unreachable(
            f"EC2 does not answer at {config.get('Endpoint') or 'region ' + config['Region']}: {type(error).__name__}",
            f"check the network, the proxy settings, and --{PREFIX}region and --{PREFIX}endpoint",
        ) from error
    except ResponseParserError:  # it contains the response, which may come from another service and must not be shown
        raise MachineError(
            f"{config.get('Endpoint') or 'region ' + config['Region']} does not answer as EC2 does",
            f"check --{PREFIX}region and --{PREFIX}endpoint",
        ) from None
    except BotoCoreError as error:
        raise MachineError(f"boto3 cannot call EC2: {error}") from error


def code_of(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")


def is_refusal(error: ClientError) -> bool:
    """Whether the request was rejected without effect, rather than failed in the cloud."""
    return 400 <= error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) < 500


def _refusal(error: ClientError, config: Config) -> MachineError:
    code, said = code_of(error), error.response.get("Error", {}).get("Message", "").strip().rstrip(".")
    if code in _DENIED:  # the message is mostly encoded; a request may need more than its own action
        named = _DENIED_ACTION.search(said)
        return MachineError(
            f"AWS denies {error.operation_name} in {config['Region']} to this credential",
            f"allow the action {named[1] if named else f'ec2:{error.operation_name}'} in its IAM policy",
        )
    place = f"in {settings.zone_name(config)}" if code.startswith("Insufficient") else f"in {config['Region']}"
    return MachineError(f"{error.operation_name} {place} failed: {said} ({code})", _ADVICE.get(code, ""))
