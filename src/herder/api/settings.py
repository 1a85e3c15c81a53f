"""Settings: every knob in one table, and the order in which sources are asked.

The first that says something wins: command-line flags, environment (`CATTLE_<NAME>`), `Setting` objects, a file,
defaults. What may change while running is read through `Settings.get` each time it is needed, so an edited `Setting`
object counts from the next use on.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from herder import __version__
from herder.api.spans import LONGEST
from herder.engine.meta.errors import FieldError, invalid_value
from herder.engine.meta.kinds import Kind, Object

SETTING = Kind("management.cattle.io", "v3", "Setting", "settings", namespaced=False)


@dataclass(frozen=True, slots=True)
class Definition:
    name: str
    default: str
    meaning: str
    check: Callable[[str], str] | None = None  # "" when the value is fine, else what is wrong with it

    @property
    def environment(self) -> str:
        return "CATTLE_" + self.name.upper().replace("-", "_")


def _duration(text: str) -> str:
    try:
        seconds(text)
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
        return "must be a JSON object whose values are lists of words"
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
PASSED_VARIABLES = "whitelist-envvars"
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
NODE_TOKEN_UNUSED = "system-agent-installer-token-long-ttl"
NODE_TOKEN_USED = "system-agent-installer-token-short-ttl"
NODE_AGENT_VERSION = "system-agent-version"
WINDOWS_AGENT_VERSION = "wins-agent-version"
WINDOWS_CSI_PROXY_VERSION = "csi-proxy-agent-version"
NODE_ASSETS = "system-agent-assets"
INSTALLER_IMAGE = "system-agent-installer-image"
DEFAULT_REGISTRY = "system-default-registry"
RKE2_PRIME_DEFAULT = "rke2-provisioning-prime-default"
FEWEST_TTL_MINUTES, FEWEST_GRACE_MINUTES = 30, 10


def patterns(text: str) -> list[str]:
    """The regular expressions in a list of them with commas between."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _patterns(text: str) -> str:
    for pattern in patterns(text):
        try:
            re.compile(pattern)
        except re.error as error:
            return f'"{pattern}" is not a regular expression: {error}'
    return ""


def networks(text: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """The networks in a list of them with commas between. Raises ValueError."""
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]


def _networks(text: str) -> str:
    try:
        networks(text)
    except ValueError as error:
        return f"must be IP addresses or networks such as 10.0.0.0/8, with commas between: {error}"
    return ""


def _boolean(text: str) -> str:
    return "" if text in {"true", "false"} else 'must be "true" or "false"'


def _pull_policy(text: str) -> str:
    return "" if text in {"Always", "IfNotPresent", "Never"} else "must be Always, IfNotPresent or Never"


_URL = re.compile(r"https://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?")


def _url(text: str) -> str:
    """It stands in commands that people run, so nothing that a shell reads in a special way may be in it. Tokens are
    sent there, so nothing but https will do."""
    return "" if _URL.fullmatch(text) else "must be a URL such as https://herder.example.com or https://10.0.0.1:8443"


def _minutes(fewest: int) -> Callable[[str], str]:
    def check(text: str) -> str:
        enough = text.isdecimal() and len(text) < 9 and int(text) >= fewest
        return "" if enough else f"must be a number of minutes, at least {fewest}"

    return check


def _tls_mode(text: str) -> str:
    return "" if text in {"strict", "system-store"} else "must be strict or system-store"


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")


def seconds(text: str) -> float:
    """A duration as Go writes it (`30s`, `1h30m`), with days besides; a hundred years at most."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(text)
    return min(sum(float(number) * _UNITS[unit] for number, unit in parts), LONGEST.total_seconds())


DEFINITIONS = {
    definition.name: definition
    for definition in (
        Definition(
            "history-retention",
            "24h",
            "how long the embedded store keeps superseded revisions",
            _duration,
        ),
        Definition(
            "runner-commands",
            "{}",
            "image name → command, for Jobs that the built-in runner executes as local processes",
            _json_object,
        ),
        Definition(
            SYNC_MACHINE_LABELS,
            "",
            "regular expressions, with commas between: labels of Machines that their Nodes get too",
            _patterns,
        ),
        Definition(
            SYNC_MACHINE_ANNOTATIONS,
            "",
            "regular expressions, with commas between: annotations of Machines that their Nodes get too",
            _patterns,
        ),
        Definition(
            MACHINE_TAINT_PROPAGATION,
            "false",
            "whether the taints of Machines are brought to their Nodes",
            _boolean,
        ),
        Definition(
            MACHINE_IMAGE,
            f"herder/machine:v{__version__}",
            "the image of Jobs that create and remove machines",
        ),
        Definition(
            MACHINE_IMAGE_PULL_POLICY,
            "Always",
            "when that image is pulled: Always, IfNotPresent or Never",
            _pull_policy,
        ),
        Definition(
            RANCHER_MACHINE_IMAGE,
            "rancher/machine:v0.15.0-rancher145",
            "the image of those Jobs for drivers that are not our own",
        ),
        Definition(
            RANCHER_MACHINE_PATH,
            "rancher-machine",
            "where the built-in runner finds the program of that image",
        ),
        Definition(
            DELETE_FAILED_MACHINES_AFTER,
            "0s",
            "how long a Machine stays whose server could not be created",
            _duration,
        ),
        Definition(
            PASSED_VARIABLES,
            "HTTP_PROXY,HTTPS_PROXY,NO_PROXY",
            "variables of the manager's environment that Jobs for machines get too, with commas between",
        ),
        Definition(
            ARCHIVE_RETENTION,
            "7d",
            "how long logs are kept after their machine is gone",
            _duration,
        ),
        Definition(
            TOKEN_MAX_TTL,
            "129600",
            "the longest life of a token, in minutes; 0: no limit",
            _minutes(0),
        ),
        Definition(
            TOKEN_DEFAULT_TTL,
            "129600",
            "the life of a token that none was asked for, in minutes; 0: the longest",
            _minutes(0),
        ),
        Definition(
            KUBECONFIG_MAX_TTL,
            "129600",
            "the longest life of a kubeconfig's token, in minutes; 0: no limit",
            _minutes(0),
        ),
        Definition(
            KUBECONFIG_DEFAULT_TTL,
            "43200",
            "the life of a kubeconfig's token that none was asked for, in minutes; 0: the longest",
            _minutes(0),
        ),
        Definition(
            KUBECONFIG_GENERATE_TOKEN,
            "true",
            "whether kubeconfigs come with a token; without, kubectl asks for one when it needs it",
            _boolean,
        ),
        Definition(
            SESSION_TTL,
            "960",
            "how long a login lasts, in minutes",
            _minutes(1),
        ),
        Definition(
            SESSION_IDLE_TTL,
            "960",
            "how long a login lasts that is not used, in minutes",
            _minutes(1),
        ),
        Definition(
            TRUSTED_PROXIES,
            "",
            "networks, with commas between: load balancers whose X-Forwarded-For counts when logins are throttled",
            _networks,
        ),
        Definition(
            IMAGE_ARCHIVES,
            "",
            "directory beside the manager with archives of images, which it serves to machines as a registry",
        ),
        Definition(
            SERVER_URL,
            "",
            "where agents and kubeconfigs reach this manager",
            _url,
        ),
        Definition(
            SERVER_CERTIFICATES,
            "",
            "the certificates, in PEM, that whoever comes to server-url is to trust",
        ),
        Definition(
            INTERNAL_SERVER_URL,
            "",
            "where programs beside this manager reach it, such as those that read a cluster's kubeconfig Secret; "
            "server-url where it is empty",
            _url,
        ),
        Definition(
            INTERNAL_SERVER_CERTIFICATES,
            "",
            "the certificates, in PEM, that are to be trusted at internal-server-url; cacerts where it is empty",
        ),
        Definition(
            LOCAL_CLUSTER_ADDRESSES,
            "false",
            "whether kubeconfigs of workload clusters may name loopback and link-local addresses, which are those of "
            "this manager's host",
            _boolean,
        ),
        Definition(
            AGENT_IMAGE,
            f"herder/agent:v{__version__}",
            "the image of the agent in clusters that are managed from here",
        ),
        Definition(
            AGENT_TLS_MODE,
            "strict",
            "strict: agents trust nothing but cacerts; system-store: what their system trusts, where there is none",
            _tls_mode,
        ),
        Definition(
            INSTALLER_IMAGE,
            "rancher/system-agent-installer-",
            "the image that installs Kubernetes on a node, but for the distribution's name and the version",
        ),
        Definition(
            DEFAULT_REGISTRY,
            "",
            "the registry that nodes pull from where an image names none",
        ),
        Definition(
            RKE2_PRIME_DEFAULT,
            "false",
            "whether servers of RKE2 run as prime where their cluster does not say",
            _boolean,
        ),
        Definition(
            REGISTRATION_TTL,
            "43200",
            "after how many minutes the token that an agent registers with is replaced",
            _minutes(FEWEST_TTL_MINUTES),
        ),
        Definition(
            REGISTRATION_GRACE,
            "180",
            "for how many minutes the token before it still counts then",
            _minutes(FEWEST_GRACE_MINUTES),
        ),
        Definition(
            NODE_TOKENS_EXPIRE,
            "true",
            "whether the token in a new machine's install script expires",
            _boolean,
        ),
        Definition(
            NODE_TOKEN_UNUSED,
            "30m",
            "validity of that token after its creation",
            _duration,
        ),
        Definition(
            NODE_TOKEN_USED,
            "30s",
            "validity of that token after its first use",
            _duration,
        ),
        Definition(
            NODE_AGENT_VERSION,
            f"v{__version__}",
            "the version of the node agent that new machines install",
        ),
        Definition(
            WINDOWS_AGENT_VERSION,
            "",
            "the version of wins on Windows nodes, for programs that look it up here",
        ),
        Definition(
            WINDOWS_CSI_PROXY_VERSION,
            "",
            "the version of the CSI proxy on Windows nodes, for programs that look it up here",
        ),
        Definition(
            NODE_ASSETS,
            "",
            "a directory of this host with what nodes may download besides, such as rancher-system-agent-amd64",
        ),
    )
}


def internal_address(setting: Callable[[str], str]) -> tuple[str, str]:
    """Where programs beside the manager reach it, and the certificates that they trust there."""
    url = setting(INTERNAL_SERVER_URL) or setting(SERVER_URL)
    certificates = setting(INTERNAL_SERVER_CERTIFICATES) or setting(SERVER_CERTIFICATES)
    return url.rstrip("/"), certificates.strip()


@dataclass
class Settings:
    """The layers. `objects` is asked at each look, so it may follow a watch."""

    flags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    objects: Callable[[str], Object | None] = lambda _name: None
    file: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[str, str] = field(default_factory=dict)  # by the process itself, where nobody says anything

    def get(self, name: str) -> str:
        return self.look(name)[0]

    def problems(self) -> list[str]:
        """What is wrong with the layers that do not change while running, each with its source."""
        found = []
        named: list[tuple[str, Mapping[str, str]]] = [("flag", self.flags), ("file", self.file)]
        for source, layer in named:
            found += [f'{source}: no setting named "{name}"' for name in layer if name not in DEFINITIONS]
        named.append(("environment", {d.name: self.environment.get(d.environment, "") for d in DEFINITIONS.values()}))
        for source, layer in named:
            for name, value in layer.items():
                found += [f"{source}: {name}: {error}" for error in validate_value(name, value)]
        return found

    def look(self, name: str) -> tuple[str, str]:
        """The value, and which layer said it: flag, env, object, file or default."""
        definition = DEFINITIONS.get(name)
        if definition is None:
            raise KeyError(f'no setting named "{name}"')
        if name in self.flags:
            return self.flags[name], "flag"
        if self.environment.get(definition.environment):
            return self.environment[definition.environment], "env"
        stored = (self.objects(name) or {}).get("value")
        if stored and not validate_value(name, stored):
            return stored, "object"
        if name in self.file:
            return self.file[name], "file"
        return self.found.get(name, definition.default), "default"


def validate_value(name: str, value: object) -> list[FieldError]:
    """What is wrong with a setting's value; unknown settings may hold anything, as other programs keep theirs here."""
    definition = DEFINITIONS.get(name)
    if not isinstance(value, str):
        return [invalid_value("value", value, "must be a string")]
    if definition is None or definition.check is None or not value:
        return []
    problem = definition.check(value)
    return [invalid_value("value", value, problem)] if problem else []


def setting_objects(settings: Settings) -> list[Object]:
    """One `Setting` object for each definition, as it is applied at start: people find them by listing.

    The value is the user's and left alone, but for one from the environment: that is shown as the value, as other
    programs read it there, and taken back when the environment does not say it any more. `source` says what wins.
    """
    objects = []
    for definition in DEFINITIONS.values():
        value, source = settings.look(definition.name)
        obj: Object = {
            "apiVersion": SETTING.api_version,
            "kind": SETTING.kind,
            "metadata": {"name": definition.name},
            "default": settings.found.get(definition.name, definition.default),
            "source": source if source in {"flag", "env"} else "",
            **({"value": value} if source == "env" else {}),
        }
        objects.append(obj)
    return objects
