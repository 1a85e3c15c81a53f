"""Default NodeDrivers: upstream's, and those of the native drivers.

They are created once and then belong to the user; only the annotations, which describe their fields, are kept up to
date.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from herder.api.machines.drivers import known
from herder.api.machines.kinds import NODE_DRIVER
from herder.engine.meta.kinds import Object

AMD64 = "amd64"


@dataclass(frozen=True, slots=True)
class Registered:
    name: str
    active: bool = False
    add_cloud_credential: bool = False
    public: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    passwords: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # schema field → driver field
    url: str = known.BUILT_IN_URL  # `{}` is the architecture
    checksums: Mapping[str, str] = field(default_factory=dict)  # by architecture
    domains: tuple[str, ...] = ()

    def node_driver(self, architecture: str) -> Object:
        available_architecture = architecture if architecture in self.checksums else AMD64
        spec: Object = {
            "displayName": self.name,
            "active": self.active,
            "builtin": self.url == known.BUILT_IN_URL,
            "addCloudCredential": self.add_cloud_credential,
            "url": self.url.format(available_architecture),
            "checksum": self.checksums.get(available_architecture, ""),
        }
        if self.domains:
            spec["whitelistDomains"] = list(self.domains)
        return {
            "apiVersion": NODE_DRIVER.api_version,
            "kind": NODE_DRIVER.kind,
            "metadata": {"name": self.name, "annotations": self._annotations()},
            "spec": spec,
        }

    def _annotations(self) -> dict[str, str]:
        status = {
            known.PUBLIC_FIELDS: ",".join(self.public),
            known.PRIVATE_FIELDS: ",".join(self.private),
            known.OPTIONAL_FIELDS: ",".join(self.optional),
            known.PASSWORD_FIELDS: ",".join(self.passwords),
            known.CREDENTIAL_DEFAULTS: _pairs(self.defaults),
            known.FILE_ALIASES: _pairs(self.files),
        }
        return {name: text for name, text in status.items() if text}


def _pairs(pairs: Mapping[str, str]) -> str:
    return ",".join(f"{name}:{value}" for name, value in sorted(pairs.items()))


_AWS_SERVICES = (
    "iam.amazonaws.com",
    "iam.us-gov.amazonaws.com",
    "iam.%.amazonaws.com.cn",
    "iam.global.api.aws",
    *(
        f"{service}.%.{zone}"
        for service in ("ec2", "eks", "kms")
        for zone in ("amazonaws.com", "amazonaws.com.cn", "api.aws")
    ),
)

_ON_THIS_HOST = (
    Registered("process", active=True),
    Registered("local", active=True, files={"userdata": "userdata"}),
    Registered("generic", active=True, private=("sshKey",), optional=("sshKey",), files={"sshKey": "sshKey"}),
)

_BUILT_IN = (
    Registered(
        "amazonec2",
        active=True,
        add_cloud_credential=True,
        public=("accessKey",),
        private=("secretKey",),
        files={"sshKeyContents": "sshKeypath", "userdata": "userdata"},
        domains=_AWS_SERVICES,
    ),
    Registered(
        "azure",
        active=True,
        add_cloud_credential=True,
        public=("clientId", "subscriptionId", "tenantId", "environment"),
        private=("clientSecret",),
        optional=("tenantId",),
        files={"customData": "customData"},
    ),
    Registered(
        "digitalocean",
        active=True,
        private=("accessToken",),
        files={"sshKeyContents": "sshKeyPath", "userdata": "userdata"},
        domains=("api.digitalocean.com",),
    ),
    Registered(
        "vmwarevsphere",
        active=True,
        public=("username", "vcenter", "vcenterPort"),
        private=("password",),
        defaults={"vcenterPort": "443"},
        files={"cloudConfig": "cloud-config"},
    ),
    Registered(
        "google",
        add_cloud_credential=True,
        private=("authEncodedJson",),
        files={"authEncodedJson": "authEncodedJson", "userdata": "userdata"},
    ),
    Registered(
        "openstack",
        private=("password",),
        files={"cacert": "cacert", "privateKeyFile": "privateKeyFile", "userDataFile": "userDataFile"},
    ),
    Registered(
        "exoscale",
        public=("apiKey",),
        private=("apiSecretKey",),
        files={"sshKey": "sshKey", "userdata": "userdata"},
        domains=("api.exoscale.ch",),
    ),
    Registered("rackspace", private=("apiKey",)),
    Registered("softlayer", private=("apiKey",)),
)

_RELEASES = "https://github.com/{}/releases/download/{}"

_DOWNLOADED = (
    Registered(
        "harvester",
        public=("clusterType", "clusterId"),
        private=("kubeconfigContent",),
        optional=("clusterId",),
        defaults={"clusterType": "imported"},
        url=_RELEASES.format(
            "harvester/docker-machine-driver-harvester", "v1.0.6/docker-machine-driver-harvester-{}.tar.gz"
        ),
        checksums={
            "amd64": "7db00430a1c047e6627681446a99219815156e971043ba7a22a083d69fafe44a",
            "arm64": "e536ded30af40bdfa53a1010e39dfe2f72f5add499b564b9516c1385ee3a98c5",
        },
        domains=("github.com",),
    ),
    Registered(
        "linode",
        private=("token",),
        passwords=("rootPass",),
        url=_RELEASES.format(
            "linode/docker-machine-driver-linode", "v0.1.16/docker-machine-driver-linode_linux-{}.zip"
        ),
        checksums={
            "amd64": "d9c3b8c389a022b0e5c5e8912496c18a673fa74bb52ec6ab51c0a93e0f4de06d",
            "arm64": "1a8336f66bffc2186f5fb77642f509b9370f177397ee71f1a8cb522e5979dbec",
        },
        domains=("api.linode.com",),
    ),
    Registered(
        "nutanix",
        public=("endpoint", "username", "port"),
        private=("password",),
        url=_RELEASES.format("nutanix/docker-machine", "v3.8.0/docker-machine-driver-nutanix"),
        checksums={AMD64: "ad18a0150f37e6cf0aef99a529f9541be72daa9e6dc3dad835d095d44e600f6a"},
        domains=("nutanix.github.io",),
    ),
    Registered(
        "oci",
        public=("tenancyId", "userId", "fingerprint"),
        private=("privateKeyContents",),
        passwords=("privateKeyPassphrase",),
        url=_RELEASES.format("rancher-plugins/rancher-machine-driver-oci", "v1.3.0/docker-machine-driver-oci-linux"),
        checksums={AMD64: "0a1afa6a0af85ecf3d77cc554960e36e1be5fd12b22b0155717b9289669e4021"},
        domains=("*.oraclecloud.com",),
    ),
    Registered(
        "otc",
        public=("accessKey", "username"),
        private=("secretKey", "password", "token"),
        files={"privateKeyFile": "privateKeyFile"},
        url=(
            "https://otc-rancher.obs.eu-de.otc.t-systems.com/node/driver/0.3.3/"
            "docker-machine-driver-otc_0.3.3_linux_amd64.tar.gz"
        ),
        checksums={AMD64: "2151670a96e3ee71aedcfb5a1b73804a4772c3f9ca7f714f2a572d3868a648d1"},
        domains=("*.otc.t-systems.com",),
    ),
    Registered(
        "packet",
        private=("apiKey",),
        files={"userdata": "userdata"},
        url=_RELEASES.format(
            "equinix/docker-machine-driver-metal", "v0.6.0/docker-machine-driver-metal_linux-amd64.zip"
        ),
        checksums={AMD64: "fad5e551a35d2ef2db742b07ca6d61bb9c9b574d322d3000f0c557d5fb90a734"},
        domains=("api.packet.net", "api.equinix.com", "rancher-drivers.equinixmetal.net"),
    ),
    Registered(
        "pnap",
        public=("clientIdentifier",),
        private=("clientSecret",),
        url=_RELEASES.format(
            "phoenixnap/docker-machine-driver-pnap", "v0.5.1/docker-machine-driver-pnap_0.5.1_linux_amd64.zip"
        ),
        checksums={AMD64: "5847599c24c137975fd190747a15ad4db9529ae35059b60e5f8bc9a470d55229"},
        domains=("api.securedservers.com", "api.phoenixnap.com", "auth.phoenixnap.com"),
    ),
    Registered(
        "outscale",
        public=("accessKey", "region"),
        private=("secretKey",),
        url=_RELEASES.format(
            "outscale/docker-machine-driver-outscale",
            "v0.2.0/docker-machine-driver-outscale_0.2.0_linux_amd64.zip",
        ),
        checksums={AMD64: "bb539ed4e2b0f1a1083b29cbdbab59bde3efed0a3145fefc0b2f47026c48bfe0"},
        domains=("oos.eu-west-2.outscale.com",),
    ),
    Registered(
        "cloudca",
        url=(
            "https://github.com/cloud-ca/docker-machine-driver-cloudca/files/2446837/"
            "docker-machine-driver-cloudca_v2.0.0_linux-amd64.zip"
        ),
        checksums={AMD64: "1757e2b807b0fea4a38eade4e961bcc609853986a44a99a4e86a37ccea1f7679"},
        domains=("objects-east.cloud.ca",),
    ),
    Registered(
        "cloudscale",
        url=_RELEASES.format(
            "cloudscale-ch/docker-machine-driver-cloudscale",
            "v1.2.0/docker-machine-driver-cloudscale_v1.2.0_linux_amd64.tar.gz",
        ),
        checksums={AMD64: "e33fbd6c2f87b1c470bcb653cc8aa50baf914a9d641a2f18f86a07c398cfb544"},
        domains=("objects.rma.cloudscale.ch",),
    ),
)

_ALL = (*_ON_THIS_HOST, *_BUILT_IN, *_DOWNLOADED)


def default_node_drivers(architecture: str = AMD64) -> list[Object]:
    """Return the NodeDrivers to create at startup if missing; `architecture` as Go names it."""
    return [driver.node_driver(architecture) for driver in _ALL]


def default_node_driver(driver: str) -> Object | None:
    """Return the default NodeDriver of a driver; None for drivers added by users."""
    return next((each.node_driver(AMD64) for each in _ALL if each.name == driver), None)


def is_remote_driver(driver: str) -> bool:
    """Whether machines of a default driver have a network of their own, in which the manager's host is another host.

    Process machines share the network of the manager's host. Drivers added by users may do so too.
    """
    return driver != "process" and any(each.name == driver for each in _ALL)
