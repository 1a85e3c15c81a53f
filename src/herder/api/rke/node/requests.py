"""Registration requests of custom machines: request headers, validated and stored in a Secret."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import CLUSTER_NAME, CONTROL_PLANE
from herder.api.rke import names
from herder.engine.meta.kinds import Object
from herder.engine.meta.names import dns1123_subdomain, label_value, qualified_name

PREFIX = "x-cattle-"
ID = "id"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MAX_TEXT = 64 * 1024
_ROLES = {
    "role-etcd": names.ETCD_ROLE,
    "role-control-plane": names.CONTROL_PLANE_ROLE,
    "role-worker": names.WORKER_ROLE,
}
_RESERVED_PREFIXES = ("rke.cattle.io/", "plan.cattle.io/", "cluster.x-k8s.io/", "machine.cluster.x-k8s.io/")


class BadClaim(ValueError):
    """A header of the request is invalid; the message names the flag of the install script and what to do."""


@dataclass(frozen=True, slots=True)
class MachineRequest:
    id: str
    roles: tuple[str, ...] = ()  # label keys
    node_name: str = ""
    addresses: tuple[str, ...] = ()
    internal_addresses: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()

    def machine_labels(self, cluster: str) -> dict[str, str]:
        """Labels of the Machine and its objects. User labels never override those of the manager."""
        control_plane = {CONTROL_PLANE: "true"} if names.CONTROL_PLANE_ROLE in self.roles else {}
        return {
            **self.labels,
            **dict.fromkeys(self.roles, "true"),
            **control_plane,
            **({names.NODE_NAME: self.node_name} if self.node_name else {}),
            names.MACHINE_ID: self.id,
            names.CLUSTER_NAME: cluster,
            CLUSTER_NAME: cluster,
        }

    def taint_annotations(self) -> dict[str, str]:
        return {names.TAINTS: _compact(self.taints)} if self.taints else {}

    def node_annotations(self) -> dict[str, str]:
        """Annotations for the planner, which passes them to the node."""
        status = {
            names.ADDRESS: ",".join(self.addresses),
            names.INTERNAL_ADDRESS: ",".join(self.internal_addresses),
            names.LABELS: _compact(dict(self.labels)) if self.labels else "",
        }
        return {**{name: value for name, value in status.items() if value}, **self.taint_annotations()}


# --- headers and the stored request ----------------------------------------------------------------------------------


def registration_headers(headers: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the registration headers (lower case) to store, by name without the prefix."""
    kept = {name.removeprefix(PREFIX): [value] for name, value in headers.items() if name.startswith(PREFIX)}
    if sum(len(value) for values in kept.values() for value in values) > MAX_TEXT:
        raise BadClaim(f"labels, taints and addresses: must not exceed {MAX_TEXT // 1024} KiB in total; pass fewer")
    return kept


def parse_request(data: Mapping[str, Sequence[str]]) -> MachineRequest:
    """Validate a stored request. Raises BadClaim."""
    return MachineRequest(
        id=machine_id(_first_value(data, ID)),
        roles=_roles(data),
        node_name=_validated("--node-name", _first_value(data, "node-name"), _node_name),
        addresses=_addresses("--address", data.get("address") or ()),
        internal_addresses=_addresses("--internal-address", data.get("internal-address") or ()),
        labels=dict(_label(item) for item in _items(data.get("labels") or ())),
        taints=tuple(_taint(item) for item in _items(data.get("taints") or ())),
    )


def machine_id(text: str) -> str:
    if not text:
        raise BadClaim("CATTLE_ID: empty")
    return _validated("CATTLE_ID", text, label_value)


def _first_value(data: Mapping[str, Sequence[str]], name: str) -> str:
    return next(iter(data.get(name) or ()), "").strip()


def _items(values: Iterable[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _validated(flag: str, value: str, check: Callable[[str], list[str]]) -> str:
    if value and (problems := check(value)):
        raise BadClaim(f'{flag}: "{value[:100]}": {problems[0]}')
    return value


def _node_name(value: str) -> list[str]:
    return dns1123_subdomain(value) or label_value(value)


def _roles(data: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(role for name, role in _ROLES.items() if _first_value(data, name).lower() == "true")


def _addresses(flag: str, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(_address(flag, item) for item in _items(values))


def _address(flag: str, text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return _validated(flag, text, dns1123_subdomain)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadClaim(f'--label: "{text[:100]}": must be key=value')
    if key.startswith(_RESERVED_PREFIXES):
        raise BadClaim(f'--label: "{key[:100]}": labels of {key.partition("/")[0]} are reserved for the manager')
    return _validated("--label", key, qualified_name), _validated(f"--label {key}", value, label_value)


def _taint(text: str) -> Mapping[str, str]:
    named, colon, effect = text.rpartition(":")
    key, _, value = named.partition("=")
    if not colon or effect not in EFFECTS:
        raise BadClaim(f'--taint: "{text[:100]}": must be key=value:effect, the effect one of {", ".join(EFFECTS)}')
    _validated("--taint", key, qualified_name)
    taint = {"key": key, "value": _validated("--taint", value, label_value), "effect": effect}
    return {name: part for name, part in taint.items() if part}


def _compact(value: object) -> str:
    """Encode like Go, because other programs compare the text."""
    return json.dumps(value, separators=(",", ":"), sort_keys=isinstance(value, dict))


def check_roles(request: MachineRequest) -> None:
    if not request.roles:
        raise BadClaim("no role given; pass --etcd, --controlplane, --worker or --all-roles")


def request_secret(management_cluster: str, kept: Mapping[str, Sequence[str]]) -> Object:
    """Build the Secret of a registration request, from which a controller creates a Machine. It contains no secrets."""
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": names.custom_machine(_first_value(kept, ID)),
            "namespace": management_cluster,
            "labels": {names.REQUEST_FOR: management_cluster},
        },
        "type": names.REQUEST_SECRET_TYPE,
        "data": {"data": base64.b64encode(json.dumps(kept, sort_keys=True).encode()).decode()},
    }


def read_request(secret: Object) -> dict[str, list[str]]:
    """Return the stored headers; raise ValueError if they cannot be decoded."""
    try:
        kept = json.loads(base64.b64decode((secret.get("data") or {}).get("data") or "", validate=True))
    except RecursionError:
        raise ValueError("data: nested too deeply") from None
    if not isinstance(kept, dict):
        raise ValueError("data: must be a JSON object")
    return {str(name): [str(value) for value in values] for name, values in kept.items() if isinstance(values, list)}
