"""Life cycle of one EC2 instance, from any intermediate state.

Before each resource is created, the record says how to find it: key pair and groups by name, the instance by a token.
So after a crash, exactly what exists is completed or removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from herder.machine.driver import Machine, State
from herder.machine.drivers.amazonec2 import groups, images, keys, launch, network, settings
from herder.machine.drivers.amazonec2.client import connect
from herder.machine.drivers.amazonec2.errors import code_of, explained, is_refusal
from herder.machine.drivers.amazonec2.options import PREFIX
from herder.machine.drivers.amazonec2.settings import CREATION_TOKEN, LAUNCH_ASKED
from herder.machine.errors import MachineError, ServerGone

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, ImageTypeDef, InstanceTypeDef

_POLLS, _POLL_SECONDS = 60, 3.0
_LAUNCHES = 5  # attempts, if others delete a group concurrently
_LOOKS, _LOOK_SECONDS = 4, 2.0
_ENDED = ("shutting-down", "terminated")
_STATES = {
    "pending": State.STARTING,
    "running": State.RUNNING,
    "stopping": State.STOPPING,
    "shutting-down": State.STOPPING,
    "stopped": State.STOPPED,
    "terminated": State.NOT_FOUND,
}


class Server:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.config = machine.config
        self._image: ImageTypeDef | None = None
        with explained(self.config):
            self.client = connect(self.config)

    # Making it

    def check(self) -> None:
        """Check everything that can be known before, and record defaults."""
        with explained(self.config):
            network.choose(self.client, self.config)
            self._image = images.find(self.client, self.config)
            groups.check(self.client, self.config)
            launch.user_data(self.machine.user_data)
            keys.prepare(self.machine, is_new=True)

    def create(self) -> None:
        self.machine.say("Launching instance...")
        with explained(self.config):
            if not self.config["InstanceId"]:
                self._remember(self._begun() or self._launch())
            self._await_reachable()

    def _begun(self) -> InstanceTypeDef | None:
        """Find an instance that an earlier attempt launched without recording it."""
        found = self._poll_until_found(self._find_by_token) if self.config.get(LAUNCH_ASKED) else None
        if found is None or _state(found) not in _ENDED:
            return found
        self.config[CREATION_TOKEN] = settings.new_token()  # that instance is terminated, and its token used up
        return None

    def _launch(self) -> InstanceTypeDef:
        keys.prepare(self.machine, is_new=False)
        self.machine.save()
        keys.ensure(self.client, self.machine)
        tries = _LAUNCHES
        while True:
            tries -= 1
            try:
                self.config["SecurityGroupIds"] = groups.ensure(self.client, self.config, self.machine.sleep)
                return self._run()
            except ClientError as error:
                if code_of(error) != groups.GONE or not tries:
                    raise

    def _run(self) -> InstanceTypeDef:
        image = self._image or images.find(self.client, self.config)
        asked = launch.request(self.machine, image)
        self.config[LAUNCH_ASKED] = True
        self.machine.save()
        try:
            return self.client.run_instances(**asked)["Instances"][0]
        except ClientError as error:
            if is_refusal(error) and not code_of(error).startswith("Idempotent"):
                self.config[LAUNCH_ASKED] = False
                self.machine.save()
            raise

    def _remember(self, instance: InstanceTypeDef) -> None:
        self.config["InstanceId"] = instance["InstanceId"]
        self.config[LAUNCH_ASKED] = False
        self.machine.save()

    def _await_reachable(self) -> None:
        for attempt in range(_POLLS):
            self.machine.sleep(_POLL_SECONDS if attempt else 0)
            instance = self._find()
            if instance is not None and self._is_reachable(instance):
                return
        raise MachineError(
            f"instance {self.config['InstanceId']} is not running with an IP address after"
            f" {_POLLS * _POLL_SECONDS:.0f} seconds",
            f"check its state in the EC2 console, and if its subnet assigns no public address, set"
            f" --{PREFIX}use-private-address",
        )

    def _is_reachable(self, instance: InstanceTypeDef) -> bool:
        """Whether it runs with the requested addresses, which are recorded."""
        if _state(instance) in _ENDED:
            reason = instance.get("StateReason", {}).get("Message", "EC2 does not say why")
            raise MachineError(f"instance {instance['InstanceId']} terminated during startup: {reason}")
        only_6, both = self.config.get("Ipv6AddressOnly"), self.config.get("Ipv6AddressCount")
        self.config["PrivateIPAddress"] = instance.get("PrivateIpAddress", "")
        self.config["IPAddress"] = "" if only_6 else self._ipv4(instance)
        self.config["IPv6Address"] = _ipv6(instance) if only_6 or both else ""
        needed = ("IPv6Address",) if only_6 else ("IPAddress", "IPv6Address") if both else ("IPAddress",)
        return _state(instance) == "running" and all(self.config[field] for field in needed)

    # Living with it

    def address(self) -> str:
        with explained(self.config):
            instance = self._existing()
        by_6 = _ipv6(instance) if self.config.get("Ipv6AddressCount") else ""
        return by_6 if self.config.get("Ipv6AddressOnly") else self._ipv4(instance) or by_6

    def state(self) -> State:
        with explained(self.config):
            instance = self._find()
        return _STATES.get(_state(instance), State.ERROR) if instance is not None else State.NOT_FOUND

    def start(self) -> None:
        with explained(self.config):
            self.client.start_instances(InstanceIds=[self._existing()["InstanceId"]])
            self._await_reachable()
            self.machine.save()  # its public address has changed

    def stop(self, *, force: bool) -> None:
        with explained(self.config):
            self.client.stop_instances(InstanceIds=[self._existing()["InstanceId"]], Force=force)

    def restart(self) -> None:
        with explained(self.config):
            self.client.reboot_instances(InstanceIds=[self._existing()["InstanceId"]])

    # Removing it

    def remove(self) -> None:
        with explained(self.config):
            self._terminate()
            keys.delete(self.client, self.config)
            self._delete_groups()

    def _terminate(self) -> None:
        instance = self._find_by_known_ids()
        if instance is None:
            return
        self.config["InstanceId"] = instance["InstanceId"]
        if "SpotInstanceRequestId" in instance:
            self._cancel_spot_request(instance["SpotInstanceRequestId"])
        if _state(instance) not in _ENDED:
            self.client.terminate_instances(InstanceIds=[instance["InstanceId"]])

    def _cancel_spot_request(self, name: str) -> None:
        try:
            self.client.cancel_spot_instance_requests(SpotInstanceRequestIds=[name])
        except ClientError as error:
            if code_of(error) != "InvalidSpotInstanceRequestID.NotFound":
                raise

    def _delete_groups(self) -> None:
        """Delete groups that no other machine uses.

        Two machines that terminate at once both wait until they are terminated, so one of them is last.
        """
        for group in groups.removable(self.client, self.config):
            if not self._has_ended() or not groups.delete(self.client, group, self.machine.sleep):
                self.machine.say(f"Security group {group} stays, because it is still in use or may not be deleted")

    def _has_ended(self) -> bool:
        for attempt in range(_POLLS):
            self.machine.sleep(_POLL_SECONDS if attempt else 0)
            instance = self._find()
            if instance is None or _state(instance) == "terminated":
                return True
        return False

    # Finding it

    def _find(self) -> InstanceTypeDef | None:
        """Find the instance by ID; None if it does not exist."""
        name = self.config.get("InstanceId")
        if not name:
            return None
        try:
            reservations = self.client.describe_instances(InstanceIds=[name])["Reservations"]
        except ClientError as error:
            if code_of(error) in ("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"):
                return None
            raise
        return next((instance for reservation in reservations for instance in reservation["Instances"]), None)

    def _find_by_token(self) -> InstanceTypeDef | None:
        by_token: FilterTypeDef = {"Name": f"tag:{launch.CREATION_TAG}", "Values": [self.config[CREATION_TOKEN]]}
        reservations = self.client.describe_instances(Filters=[by_token])["Reservations"]
        return next((instance for reservation in reservations for instance in reservation["Instances"]), None)

    def _find_by_known_ids(self) -> InstanceTypeDef | None:
        """Find the instance from any intermediate state."""
        if self.config.get(LAUNCH_ASKED):
            return self._poll_until_found(self._find_by_token)
        if self.config.get("InstanceId") and not self.config.get("PrivateIPAddress"):  # never observed yet
            return self._poll_until_found(self._find)
        return self._find()

    def _poll_until_found(self, look: Callable[[], InstanceTypeDef | None]) -> InstanceTypeDef | None:
        """Poll, because a new instance may take some seconds to become visible."""
        for attempt in range(_LOOKS):
            self.machine.sleep(_LOOK_SECONDS if attempt else 0)
            if (found := look()) is not None:
                return found
        return None

    def _existing(self) -> InstanceTypeDef:
        instance = self._find()
        if instance is None or _state(instance) == "terminated":
            name = self.config.get("InstanceId") or "that was never launched"
            raise ServerGone(f"EC2 has no instance {name} in {self.config['Region']}", "remove the machine")
        return instance

    def _ipv4(self, instance: InstanceTypeDef) -> str:
        if self.config.get("PrivateIPOnly") or self.config.get("UsePrivateIP"):
            return instance.get("PrivateIpAddress", "")
        return instance.get("PublicIpAddress", "")


def _state(instance: InstanceTypeDef) -> str:
    return instance["State"]["Name"]


def _ipv6(instance: InstanceTypeDef) -> str:
    for interface in instance.get("NetworkInterfaces", []):
        for address in interface.get("Ipv6Addresses", []):
            return address["Ipv6Address"]
    return instance.get("Ipv6Address", "")
