"""Settings: their definitions, defaults and precedence.

Precedence, highest first: command-line flags, environment (`CATTLE_<NAME>`), `Setting` objects, the configuration file,
defaults. Settings that may change at run time are read with `Settings.get` on each use, so an edited `Setting` object
takes effect at the next use.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from herder import __version__
from herder.api.durations import MAX_DURATION
from herder.engine.meta.errors import FieldError, invalid_value
from herder.engine.meta.kinds import Kind, Object

SETTING = Kind("management.cattle.io", "v3", "Setting", "settings", namespaced=False)


@dataclass(frozen=True, slots=True)
class Definition:
    """A setting: its name, default, and a description for users; `check` returns "" or what is wrong with a value."""

    name: str
    default: str
    description: str
    check: Callable[[str], str] | None = None
    is_fixed: bool = False  # the process determines the value; no layer overrides it

    @property
    def environment(self) -> str:
        return "CATTLE_" + self.name.upper().replace("-", "_")


def _duration(text: str) -> str:
    try:
        parse_duration(text)
    except ValueError:
        return "must be a duration such as 30s, 15m, 12h or 7d"
    return ""


def _json_object(text: str) -> str:
    import msgspec

    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        return f"must be a JSON object: {error}"
    if not isinstance(value, dict) or not all(_is_command(item) for item in value.values()):
        return "must be a JSON object that maps image names to commands (lists of strings)"
    return ""


def _is_command(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


SYNC_MACHINE_LABELS = "capi-additional-sync-machine-labels"
SYNC_MACHINE_ANNOTATIONS = "capi-additional-sync-machine-annotations"
MACHINE_TAINT_PROPAGATION = "capi-machine-taint-propagation"

MACHINE_IMAGE = "machine-provision-image"
MACHINE_IMAGE_PULL_POLICY = "machine-provision-image-pull-policy"
RANCHER_MACHINE_IMAGE = "rancher-machine-image"
RANCHER_MACHINE_PATH = "rancher-machine-path"
DELETE_FAILED_MACHINES_AFTER = "delete-machine-on-failure-after"
JOB_ENVIRONMENT = "whitelist-envvars"
ARCHIVE_RETENTION = "archive-retention"

TOKEN_MAX_TTL = "auth-token-max-ttl-minutes"
TOKEN_DEFAULT_TTL = "auth-token-default-ttl-minutes"
KUBECONFIG_MAX_TTL = "kubeconfig-max-token-ttl-minutes"
KUBECONFIG_DEFAULT_TTL = "kubeconfig-default-token-ttl-minutes"
KUBECONFIG_GENERATE_TOKEN = "kubeconfig-generate-token"
SESSION_TTL = "auth-user-session-ttl-minutes"
SESSION_IDLE_TTL = "auth-user-session-idle-ttl-minutes"
TRUSTED_PROXIES = "trusted-proxies"

SERVER_URL = "server-url"
SERVER_CERTIFICATES = "cacerts"
INTERNAL_SERVER_URL = "internal-server-url"
INTERNAL_SERVER_CERTIFICATES = "internal-cacerts"
LOCAL_CLUSTER_ADDRESSES = "local-cluster-addresses"
AGENT_IMAGE = "agent-image"
AGENT_TLS_MODE = "agent-tls-mode"
IMAGE_ARCHIVES = "image-archives"
REGISTRATION_TTL = "crt-default-ttl-minutes"
REGISTRATION_GRACE = "crt-default-grace-period-minutes"
NODE_TOKENS_EXPIRE = "system-agent-installer-token-ttl-enabled"
NODE_TOKEN_UNUSED_TTL = "system-agent-installer-token-long-ttl"
NODE_TOKEN_USED_TTL = "system-agent-installer-token-short-ttl"
SERVER_VERSION = "server-version"
NODE_AGENT_VERSION = "system-agent-version"
SERVED_NODE_AGENT = "served-system-agent"
WINDOWS_AGENT_VERSION = "wins-agent-version"
WINDOWS_CSI_PROXY_VERSION = "csi-proxy-agent-version"
NODE_ASSETS = "system-agent-assets"
INSTALLER_IMAGE = "system-agent-installer-image"
DEFAULT_REGISTRY = "system-default-registry"
RKE2_PRIME_DEFAULT = "rke2-provisioning-prime-default"
MIN_TTL_MINUTES, MIN_GRACE_MINUTES = 30, 10


def split_patterns(text: str) -> list[str]:
    """Split a comma-separated list of regular expressions."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _patterns(text: str) -> str:
    for pattern in split_patterns(text):
        try:
            re.compile(pattern)
        except re.error as error:
            return f'"{pattern}" is not a regular expression: {error}'
    return ""


def split_networks(text: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Split a comma-separated list of networks; raise ValueError for an invalid one."""
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]


def _networks(text: str) -> str:
    try:
        split_networks(text)
    except ValueError as error:
        return f"must be comma-separated IP addresses or networks, such as 10.0.0.0/8: {error}"
    return ""


def _boolean(text: str) -> str:
    return "" if text in {"true", "false"} else 'must be "true" or "false"'


def _pull_policy(text: str) -> str:
    return "" if text in {"Always", "IfNotPresent", "Never"} else "must be Always, IfNotPresent or Never"


_URL = re.compile(r"https://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?")


def _url(text: str) -> str:
    """Reject anything a shell would interpret, because the URL appears in commands that users copy.

    Only https is allowed, because tokens are sent to it.
    """
    return "" if _URL.fullmatch(text) else "must be a URL such as https://herder.example.com or https://10.0.0.1:8443"


def _minutes(minimum: int) -> Callable[[str], str]:
    def check(text: str) -> str:
        valid = text.isdecimal() and len(text) < 9 and int(text) >= minimum
        return "" if valid else f"must be a number of minutes, at least {minimum}"

    return check


def _tls_mode(text: str) -> str:
    return "" if text in {"strict", "system-store"} else "must be strict or system-store"


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")


def parse_duration(text: str) -> float:
    """Parse a Go duration (`30s`, `1h30m`), also with days (`7d`), as seconds; clamped to MAX_DURATION."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(text)
    return min(sum(float(number) * _UNITS[unit] for number, unit in parts), MAX_DURATION.total_seconds())


DEFINITIONS = {
    definition.name: definition
    for definition in (
        Definition(
            "history-retention",
            "24h",
            "Duration for which the embedded store keeps superseded revisions before compaction.",
            _duration,
        ),
        Definition(
            "runner-commands",
            "{}",
            "JSON object of image name to command (list of strings): Jobs with such an image run as local processes.",
            _json_object,
        ),
        Definition(
            SYNC_MACHINE_LABELS,
            "",
            "Comma-separated regular expressions: Machine labels that match are copied to the Node.",
            _patterns,
        ),
        Definition(
            SYNC_MACHINE_ANNOTATIONS,
            "",
            "Comma-separated regular expressions: Machine annotations that match are copied to the Node.",
            _patterns,
        ),
        Definition(
            MACHINE_TAINT_PROPAGATION,
            "false",
            "Propagate the taints of Machines to their Nodes.",
            _boolean,
        ),
        Definition(
            MACHINE_IMAGE,
            f"herder/machine:v{__version__}",
            "Image of the Jobs that create and delete machines with the built-in node drivers.",
        ),
        Definition(
            MACHINE_IMAGE_PULL_POLICY,
            "Always",
            "Image pull policy of the machine Jobs: Always, IfNotPresent or Never.",
            _pull_policy,
        ),
        Definition(
            RANCHER_MACHINE_IMAGE,
            "rancher/machine:v0.15.0-rancher145",
            "Image of the machine Jobs of all other node drivers, which run rancher-machine.",
        ),
        Definition(
            RANCHER_MACHINE_PATH,
            "rancher-machine",
            "Path of the rancher-machine executable that the built-in runner uses instead of that image.",
        ),
        Definition(
            DELETE_FAILED_MACHINES_AFTER,
            "0s",
            "Duration after which a Machine that could not be provisioned is deleted; at least its pool's back-off.",
            _duration,
        ),
        Definition(
            JOB_ENVIRONMENT,
            "HTTP_PROXY,HTTPS_PROXY,NO_PROXY",
            "Comma-separated environment variables that the manager passes on to machine Jobs.",
        ),
        Definition(
            ARCHIVE_RETENTION,
            "7d",
            "Duration for which provisioning logs are kept after their machine or cluster is deleted.",
            _duration,
        ),
        Definition(
            TOKEN_MAX_TTL,
            "129600",
            "Maximum lifetime of an API token, in minutes; 0 means no limit.",
            _minutes(0),
        ),
        Definition(
            TOKEN_DEFAULT_TTL,
            "129600",
            "Lifetime of an API token that requests none, in minutes; 0 means the maximum.",
            _minutes(0),
        ),
        Definition(
            KUBECONFIG_MAX_TTL,
            "129600",
            "Maximum lifetime of a kubeconfig token, in minutes; 0 means no limit.",
            _minutes(0),
        ),
        Definition(
            KUBECONFIG_DEFAULT_TTL,
            "43200",
            "Lifetime of a kubeconfig token that requests none, in minutes; 0 means the maximum.",
            _minutes(0),
        ),
        Definition(
            KUBECONFIG_GENERATE_TOKEN,
            "true",
            "Include a token in downloaded kubeconfigs; if false, kubectl logs in when it needs one.",
            _boolean,
        ),
        Definition(
            SESSION_TTL,
            "960",
            "Lifetime of a login session, in minutes.",
            _minutes(1),
        ),
        Definition(
            SESSION_IDLE_TTL,
            "960",
            "Idle time after which a login session ends, in minutes.",
            _minutes(1),
        ),
        Definition(
            TRUSTED_PROXIES,
            "",
            "Comma-separated networks of load balancers whose X-Forwarded-For header is trusted by login throttling.",
            _networks,
        ),
        Definition(
            IMAGE_ARCHIVES,
            "",
            "Directory on the manager's host with image archives, which the manager serves to machines as a registry.",
        ),
        Definition(
            SERVER_URL,
            "",
            "URL under which agents and kubeconfigs reach this manager.",
            _url,
        ),
        Definition(
            SERVER_CERTIFICATES,
            "",
            "CA certificates (PEM) that clients of server-url must trust.",
        ),
        Definition(
            INTERNAL_SERVER_URL,
            "",
            "URL under which clients next to the manager, such as readers of kubeconfig Secrets, reach it; "
            "defaults to server-url.",
            _url,
        ),
        Definition(
            INTERNAL_SERVER_CERTIFICATES,
            "",
            "CA certificates (PEM) that clients of internal-server-url must trust; defaults to cacerts.",
        ),
        Definition(
            LOCAL_CLUSTER_ADDRESSES,
            "false",
            "Allow loopback and link-local addresses in kubeconfigs of workload clusters, and in webhooks and Nodes of "
            "in-memory clusters; they address the manager's own host.",
            _boolean,
        ),
        Definition(
            AGENT_IMAGE,
            f"herder/agent:v{__version__}",
            "Image of the cluster agent in managed clusters.",
        ),
        Definition(
            AGENT_TLS_MODE,
            "strict",
            "strict: agents trust only cacerts; system-store: agents trust the system's CAs if cacerts is empty.",
            _tls_mode,
        ),
        Definition(
            INSTALLER_IMAGE,
            "rancher/system-agent-installer-",
            "Prefix of the images that install Kubernetes on nodes; distribution and version are appended.",
        ),
        Definition(
            DEFAULT_REGISTRY,
            "",
            "Registry that nodes pull images from if the image name has none.",
        ),
        Definition(
            RKE2_PRIME_DEFAULT,
            "false",
            "Run RKE2 servers as Prime if the cluster does not specify it.",
            _boolean,
        ),
        Definition(
            REGISTRATION_TTL,
            "43200",
            "Interval at which cluster registration tokens are rotated, in minutes.",
            _minutes(MIN_TTL_MINUTES),
        ),
        Definition(
            REGISTRATION_GRACE,
            "180",
            "Grace period in which the previous registration token stays valid, in minutes.",
            _minutes(MIN_GRACE_MINUTES),
        ),
        Definition(
            NODE_TOKENS_EXPIRE,
            "true",
            "Expire the bootstrap token in the install script of a new machine.",
            _boolean,
        ),
        Definition(
            NODE_TOKEN_UNUSED_TTL,
            "30m",
            "Validity of an unused bootstrap token after its creation, as a duration.",
            _duration,
        ),
        Definition(
            NODE_TOKEN_USED_TTL,
            "30s",
            "Validity of a bootstrap token after its first use, as a duration.",
            _duration,
        ),
        Definition(
            SERVER_VERSION,
            f"v{__version__}",
            "Version of this manager; a value has no effect.",
        ),
        Definition(
            NODE_AGENT_VERSION,
            f"v{__version__}",
            "Version of the node agent (system agent) that new machines install.",
        ),
        Definition(
            SERVED_NODE_AGENT,
            "",
            "Version and SHA-256 of the node agent that this manager serves; a value has no effect.",
            is_fixed=True,
        ),
        Definition(
            WINDOWS_AGENT_VERSION,
            "",
            "Version of wins on Windows nodes; only read by other programs.",
        ),
        Definition(
            WINDOWS_CSI_PROXY_VERSION,
            "",
            "Version of the CSI proxy on Windows nodes; only read by other programs.",
        ),
        Definition(
            NODE_ASSETS,
            "",
            "Directory on the manager's host with additional node downloads, such as rancher-system-agent-amd64.",
        ),
    )
}


def internal_address(setting: Callable[[str], str]) -> tuple[str, str]:
    """Return the URL and CA certificates under which clients on this host or in this cluster reach the manager."""
    url = setting(INTERNAL_SERVER_URL) or setting(SERVER_URL)
    certificates = setting(INTERNAL_SERVER_CERTIFICATES) or setting(SERVER_CERTIFICATES)
    return url.rstrip("/"), certificates.strip()


@dataclass
class Settings:
    """The layers of configuration; see the module docstring for their precedence.

    `objects` looks up a `Setting` object by name on every read, so it can be backed by a watch. `detected` are defaults
    that the process finds out at startup.
    """

    flags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    objects: Callable[[str], Object | None] = lambda _name: None
    file: Mapping[str, str] = field(default_factory=dict)
    detected: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> str:
        return self.look(name)[0]

    def problems(self) -> list[str]:
        """Return what is wrong in the layers that cannot change at run time, each problem with its source."""
        problems = []
        layers: list[tuple[str, Mapping[str, str]]] = [("flag", self.flags), ("file", self.file)]
        for source, layer in layers:
            problems += [f'{source}: no setting named "{name}"' for name in layer if name not in DEFINITIONS]
        layers.append(("environment", {d.name: self.environment.get(d.environment, "") for d in DEFINITIONS.values()}))
        for source, layer in layers:
            for name, value in layer.items():
                problems += [f"{source}: {name}: {error}" for error in validate_value(name, value)]
        return problems

    def look(self, name: str) -> tuple[str, str]:
        """Return the value and the layer it comes from: flag, env, object, file or default."""
        definition = DEFINITIONS.get(name)
        if definition is None:
            raise KeyError(f'no setting named "{name}"')
        if definition.is_fixed:
            return self.detected.get(name, definition.default), "default"
        if name in self.flags:
            return self.flags[name], "flag"
        if self.environment.get(definition.environment):
            return self.environment[definition.environment], "env"
        stored = (self.objects(name) or {}).get("value")
        if stored and not validate_value(name, stored):
            return stored, "object"
        if name in self.file:
            return self.file[name], "file"
        return self.detected.get(name, definition.default), "default"


def validate_value(name: str, value: object) -> list[FieldError]:
    """Validate a setting's value. Unknown settings may hold anything, because other programs store theirs here."""
    definition = DEFINITIONS.get(name)
    if not isinstance(value, str):
        return [invalid_value("value", value, "must be a string")]
    if definition is None or definition.check is None or not value:
        return []
    problem = definition.check(value)
    return [invalid_value("value", value, problem)] if problem else []


def setting_objects(settings: Settings) -> list[Object]:
    """Build the `Setting` object of each definition, applied at startup so that users can list all settings.

    `value` belongs to the user, except when the environment sets it: then it shows that value, because other programs
    read it there, and it is removed once the environment variable is. `source` names the layer that overrides the
    object.
    """
    objects = []
    for definition in DEFINITIONS.values():
        value, source = settings.look(definition.name)
        obj: Object = {
            "apiVersion": SETTING.api_version,
            "kind": SETTING.kind,
            "metadata": {"name": definition.name},
            "default": settings.detected.get(definition.name, definition.default),
            "source": source if source in {"flag", "env"} else "",
            **({"value": value} if source == "env" else {}),
        }
        objects.append(obj)
    return objects
