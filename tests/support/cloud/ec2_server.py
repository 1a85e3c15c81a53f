"""An emulator of EC2's API on loopback: moto, extended with rejections of the real EC2 that moto lacks.

Prints its port when it is ready.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterable
from typing import Any

STRICT = ("MOTO_ENABLE_AMI_VALIDATION", "MOTO_ENABLE_KEYPAIR_VALIDATION", "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION")
CANONICAL, OTHER_OWNER = "099720109477", "123123123123"
UBUNTU = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-{}-server-{}"

# image ID → owner, architecture, Ubuntu's name of the architecture, release date
IMAGES = {
    "ami-0000000000000aaaa": (CANONICAL, "x86_64", "amd64", "20250101"),
    "ami-0000000000000bbbb": (CANONICAL, "x86_64", "amd64", "20260101"),
    "ami-0000000000000cccc": (CANONICAL, "arm64", "arm64", "20260101"),
    "ami-0000000000000dddd": (OTHER_OWNER, "x86_64", "amd64", "20260601"),  # an imitation of Canonical's image
}
NO_TOKEN = "ABCDE"  # moto's token for requests without one
EXISTING_STATES = ("pending", "running", "stopping", "stopped")


def main() -> None:
    os.environ.update(dict.fromkeys(STRICT, "true"))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as images:
        json.dump([image(name, *facts) for name, facts in IMAGES.items()], images)
        images.flush()
        os.environ["MOTO_AMIS_PATH"] = images.name
        serve()


def image(name: str, owner: str, architecture: str, known_as: str, day: str) -> dict[str, Any]:
    return {
        "ami_id": name,
        "owner_id": owner,
        "architecture": architecture,
        "name": UBUNTU.format(known_as, day),
        "description": "Ubuntu 22.04",
        "creation_date": f"{day[:4]}-{day[4:6]}-{day[6:]}T00:00:00.000Z",
        "state": "available",
        "public": True,
        "image_location": "amazon/getting-started",
        "image_type": "machine",
        "platform": None,
        "root_device_type": "ebs",
        "root_device_name": "/dev/sda1",
        "virtualization_type": "hvm",
        "hypervisor": "xen",
    }


def serve() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    add_rejections_of_ec2()
    application = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(server.port, flush=True)
    server.serve_forever()


def one_at_a_time(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Serialize requests, so that no client sees a partially created object; moto itself has no locks."""
    lock = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with lock:
            return list(application(environ, start_response))

    return serve


def add_rejections_of_ec2() -> None:
    from moto.ec2.exceptions import DependencyViolationError, InvalidSecurityGroupNotFoundError
    from moto.ec2.models import EC2Backend

    launch, delete_group = EC2Backend.run_instances, EC2Backend.delete_security_group

    def run_instances(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Check security groups, and set the IPv6 addresses of the interfaces.

        A repeated request with the same client token returns the same instance.
        """
        token = kwargs.get("client_token")
        for reservation in self.reservations.values():
            if token != NO_TOKEN and any(instance.client_token == token for instance in reservation.instances):
                return reservation
        interfaces = kwargs.get("nics", [])
        kwargs["ipv6_address_count"] = sum(interface.get("Ipv6AddressCount", 0) for interface in interfaces)
        names = [name for interface in interfaces for name in interface.get("Groups", [])]
        groups = {name: self.get_security_group_from_id(name) for name in names}
        for name, group in groups.items():
            if group is None:
                raise InvalidSecurityGroupNotFoundError(name)
        reservation = launch(self, *args, **kwargs)
        for instance in reservation.instances:
            instance.security_groups = list(groups.values())
        return reservation

    def delete_security_group(self: Any, name: str | None = None, group_id: str | None = None) -> None:
        """Reject the deletion of a group that an instance uses."""
        for instance in self.all_instances():
            if instance.state in EXISTING_STATES and group_id in [group.id for group in instance.security_groups]:
                raise DependencyViolationError(f"resource {group_id} has a dependent object")
        delete_group(self, name, group_id)

    EC2Backend.run_instances = run_instances
    EC2Backend.delete_security_group = delete_security_group


if __name__ == "__main__":
    main()
