"""Security groups: shared by the machines of a VPC, created by the first that needs them, deleted by the last.

Machines are created and deleted concurrently, so "already exists" and "not found" are never errors here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from herder import __version__
from herder.machine.drivers.amazonec2 import settings
from herder.machine.drivers.amazonec2.errors import code_of
from herder.machine.drivers.amazonec2.options import DEFAULT_GROUP, PREFIX
from herder.machine.drivers.amazonec2.settings import Config
from herder.machine.errors import MachineError

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import IpPermissionOutputTypeDef, IpPermissionUnionTypeDef, SecurityGroupTypeDef

Sleep = Callable[[float], None]
Rule = tuple[str, int, int]  # protocol, first port, last port

MADE_BY_US = "rancher-nodes"
"""Tag of groups created by a machine CLI (ours or rancher-machine); only those get rules and are deleted."""

OPEN_TO_ALL: tuple[Rule, ...] = (
    ("tcp", 22, 22),  # SSH
    ("tcp", 80, 80),
    ("tcp", 443, 443),
    ("tcp", 2376, 2376),  # Docker
    ("tcp", 6443, 6443),  # Kubernetes API
    ("tcp", 8443, 8443),  # Rancher's webhook
    ("tcp", 30000, 32767),  # node ports
    ("udp", 30000, 32767),
)
OPEN_TO_MEMBERS: tuple[Rule, ...] = (
    ("tcp", 179, 179),  # BGP of Calico
    ("tcp", 2379, 2380),  # etcd
    ("tcp", 5473, 5473),  # Typha
    ("tcp", 9345, 9345),  # supervisor of RKE2
    ("tcp", 9796, 9796),  # node exporter
    ("tcp", 10250, 10252),  # kubelet, scheduler, controller manager
    ("tcp", 10256, 10256),  # kube-proxy
    ("udp", 4789, 4789),  # VXLAN
    ("udp", 8472, 8472),  # VXLAN of Flannel
)

GONE = "InvalidGroup.NotFound"
_EVERYWHERE, _EVERYWHERE_6 = "0.0.0.0/0", "::/0"
_DESCRIPTION = "managed by herder"
_TRIES, _PAUSE_SECONDS = 10, 1.0
_LIVING = ("pending", "running", "stopping", "stopped")


def check(client: EC2Client, config: Config) -> None:
    """Existing groups that we may not create must exist."""
    if config["SecurityGroupReadOnly"]:
        _as_they_are(client, config)


def ensure(client: EC2Client, config: Config, sleep: Sleep) -> list[str]:
    """Ensure that all groups exist with their rules; return their IDs. May raise `GONE` if one is deleted
    concurrently.
    """
    if config["SecurityGroupReadOnly"]:
        return _as_they_are(client, config)
    return [_ensure_one(client, config, name, sleep) for name in settings.group_names(config)]


def removable(client: EC2Client, config: Config) -> Iterator[str]:
    """Yield the machine's own groups that no other instance uses."""
    names = settings.group_names(config)
    if not config.get("VpcId") or not names:
        return
    for group in _described(client, config, names):
        if _is_ours(group) and not _is_needed(client, config, group["GroupId"]):
            yield group["GroupId"]


def delete(client: EC2Client, group: str, sleep: Sleep) -> bool:
    """Delete a group; return whether it is deleted. The network interface of a terminated instance may hold it for some
    seconds.
    """
    for attempt in range(_TRIES):
        sleep(_PAUSE_SECONDS if attempt else 0)
        try:
            client.delete_security_group(GroupId=group)
            return True
        except ClientError as error:
            if code_of(error) == GONE:
                return True
            if code_of(error) == "UnauthorizedOperation":
                return False
            if code_of(error) != "DependencyViolation":
                raise
    return False


def _as_they_are(client: EC2Client, config: Config) -> list[str]:
    names = settings.group_names(config)
    if not names:
        return []
    found = {group["GroupName"]: group["GroupId"] for group in _described(client, config, names)}
    missing = [name for name in names if name not in found]
    if missing:
        raise MachineError(
            f"{config['VpcId']} has no security group {', '.join(missing)}",
            f"create it, select another with --{PREFIX}security-group, or omit --{PREFIX}security-group-readonly",
        )
    return [found[name] for name in names]


def _ensure_one(client: EC2Client, config: Config, name: str, sleep: Sleep) -> str:
    for attempt in range(_TRIES):
        sleep(_PAUSE_SECONDS if attempt > 1 else 0)  # usually visible at the first poll after creation
        found = _described(client, config, [name])
        if not found:
            _create(client, config, name)
        elif _add_rules(client, config, found[0]):
            return found[0]["GroupId"]
    raise MachineError(
        f"security group {name} in {config['VpcId']} keeps changing", "try again when fewer machines are being created"
    )


def _create(client: EC2Client, config: Config, name: str) -> None:
    """Create and tag in one request, so that a crash leaves no unknown group behind."""
    try:
        client.create_security_group(
            GroupName=name,
            Description="Rancher Nodes",
            VpcId=config["VpcId"],
            TagSpecifications=[
                {"ResourceType": "security-group", "Tags": [{"Key": MADE_BY_US, "Value": f"herder-{__version__}"}]}
            ],
        )
    except ClientError as error:
        if code_of(error) != "InvalidGroup.Duplicate":
            raise


def _add_rules(client: EC2Client, config: Config, group: SecurityGroupTypeDef) -> bool:
    """Return whether all rules exist now; False if another process added some meanwhile, then none were added."""
    incoming, outgoing = missing_incoming(group, config), missing_outgoing(group)
    try:
        if incoming:
            client.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=incoming)
        if outgoing:
            client.authorize_security_group_egress(GroupId=group["GroupId"], IpPermissions=outgoing)
    except ClientError as error:
        if code_of(error) == "InvalidPermission.Duplicate":
            return False
        raise
    return True


def missing_incoming(group: SecurityGroupTypeDef, config: Config) -> list[IpPermissionUnionTypeDef]:
    """A port that is open to anyone was configured by the user, and is left as it is."""
    public = [(protocol, port, port) for protocol, port in settings.open_ports(config)]
    members: list[Rule] = []
    if _has_default_rules(group):
        public = [*OPEN_TO_ALL, *(rule for rule in public if rule not in OPEN_TO_ALL)]
        members = list(OPEN_TO_MEMBERS)
    present = group.get("IpPermissions", [])
    by_4, by_6, by_group = (_ports_with(present, key) for key in ("IpRanges", "Ipv6Ranges", "UserIdGroupPairs"))
    missing: list[IpPermissionUnionTypeDef] = []
    for protocol, first, last in public:
        if (protocol, first) not in by_4:
            missing.append(
                {
                    "IpProtocol": protocol,
                    "FromPort": first,
                    "ToPort": last,
                    "IpRanges": [{"CidrIp": _EVERYWHERE, "Description": _DESCRIPTION}],
                }
            )
        if (protocol, first) not in by_6:
            missing.append(
                {
                    "IpProtocol": protocol,
                    "FromPort": first,
                    "ToPort": last,
                    "Ipv6Ranges": [{"CidrIpv6": _EVERYWHERE_6, "Description": _DESCRIPTION}],
                }
            )
    for protocol, first, last in members:
        if (protocol, first) not in by_group:
            missing.append(
                {
                    "IpProtocol": protocol,
                    "FromPort": first,
                    "ToPort": last,
                    "UserIdGroupPairs": [{"GroupId": group["GroupId"], "Description": _DESCRIPTION}],
                }
            )
    return missing


def missing_outgoing(group: SecurityGroupTypeDef) -> list[IpPermissionUnionTypeDef]:
    if not _has_default_rules(group):
        return []
    everything = [rule for rule in group.get("IpPermissionsEgress", []) if rule.get("IpProtocol") == "-1"]
    missing: list[IpPermissionUnionTypeDef] = []
    if not any(entry.get("CidrIp") == _EVERYWHERE for rule in everything for entry in rule.get("IpRanges", [])):
        missing.append({"IpProtocol": "-1", "IpRanges": [{"CidrIp": _EVERYWHERE}]})
    if not any(entry.get("CidrIpv6") == _EVERYWHERE_6 for rule in everything for entry in rule.get("Ipv6Ranges", [])):
        missing.append({"IpProtocol": "-1", "Ipv6Ranges": [{"CidrIpv6": _EVERYWHERE_6}]})
    return missing


def _ports_with(rules: list[IpPermissionOutputTypeDef], source: str) -> set[tuple[str, int]]:
    return {(rule["IpProtocol"], rule["FromPort"]) for rule in rules if rule.get(source) and "FromPort" in rule}


def _has_default_rules(group: SecurityGroupTypeDef) -> bool:
    return group["GroupName"] == DEFAULT_GROUP and _is_ours(group)


def _is_ours(group: SecurityGroupTypeDef) -> bool:
    return any(tag.get("Key") == MADE_BY_US for tag in group.get("Tags", []))


def _is_needed(client: EC2Client, config: Config, group: str) -> bool:
    """Whether another instance uses the group."""
    reservations = client.describe_instances(
        Filters=[
            {"Name": "instance.group-id", "Values": [group]},
            {"Name": "instance-state-name", "Values": _LIVING},
        ]
    )["Reservations"]
    return any(
        instance["InstanceId"] != config.get("InstanceId")
        for reservation in reservations
        for instance in reservation["Instances"]
    )


def _described(client: EC2Client, config: Config, names: list[str]) -> list[SecurityGroupTypeDef]:
    return client.describe_security_groups(
        Filters=[{"Name": "group-name", "Values": names}, {"Name": "vpc-id", "Values": [config["VpcId"]]}]
    )["SecurityGroups"]
