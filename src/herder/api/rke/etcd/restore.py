"""What a restore takes from the copy of the Cluster's spec in a snapshot (`restoreRKEConfig`).

Servers and S3 report snapshots, and both are untrusted. A copy counts only if the manager recorded its digest when the
cluster had that spec: `status.specHistory` of the RKEControlPlane. Its references are names, which may be those of
other objects since: `status.approvedObjects` says which objects they were.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from herder.api.capi.names import annotations_of
from herder.api.references.approvals import recorded
from herder.api.rke.cluster_spec import decode_spec, version_in
from herder.api.rke.distributions import Release, version_of
from herder.api.rke.names import CLUSTER_SPEC
from herder.engine.meta.kinds import Object

NONE, VERSION, ALL = "none", "kubernetesVersion", "all"
MODES = (NONE, VERSION, ALL)
SPEC_KEY = "provisioning-cluster-spec"
"""Key of the copy in the metadata of a snapshot: base64(gzip(JSON))."""

MAX_HISTORY = 100
"""Specs whose digest is kept. Of older ones, a restore takes only the data."""

MAX_APPROVED = 2000
"""Objects that are kept of those that the specs have referenced; of further ones, the oldest is forgotten."""

_SPEC_FIELDS = (
    "kubernetesVersion",
    "defaultPodSecurityAdmissionConfigurationTemplateName",
    "clusterAgentDeploymentCustomization",
    "fleetAgentDeploymentCustomization",
    "webhookDeploymentCustomization",
)
_CONFIG_FIELDS = (
    "machineGlobalConfig",
    "machineSelectorConfig",
    "chartValues",
    "registries",
    "upgradeStrategy",
    "additionalManifest",
    "networking",
)
"""Fields that the mode `all` restores, as in Rancher: neither machine pools nor credentials of clouds and S3."""

_POD_SECURITY = Release(1, 25, 0)
"""Versions before it have PodSecurityPolicies, which later ones cannot read."""


class CannotRestore(ValueError):
    """The message says why, and what to do."""


# --- request ----------------------------------------------------------------------------------------------------------


def mode_of(request: Mapping[str, Any] | None) -> str:
    return str((request or {}).get("restoreRKEConfig") or NONE)


def restores_spec(request: Mapping[str, Any] | None) -> bool:
    """Whether it changes the spec too."""
    return bool((request or {}).get("generation")) and mode_of(request) != NONE


# --- the copy ---------------------------------------------------------------------------------------------------------


def encoded_spec(snapshot: Object) -> str:
    """The copy of the spec in a snapshot; empty if it has none that can be read."""
    try:
        metadata = msgspec.json.decode(base64.b64decode(_file(snapshot).get("metadata") or "", validate=True) or b"{}")
    except (ValueError, RecursionError):
        return ""
    found = metadata.get(SPEC_KEY) if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else ""


def _file(snapshot: Object) -> Object:
    found: Object = snapshot.get("snapshotFile") or {}
    return found


def digest(encoded: str) -> str:
    return hashlib.sha256(encoded.encode()).hexdigest()


def history(control_plane: Object | None) -> Sequence[str]:
    """Digests of the specs that the cluster has had, oldest first."""
    return ((control_plane or {}).get("status") or {}).get("specHistory") or ()


def extended_history(control_plane: Object) -> list[str] | None:
    """The history with the current spec; None if that is its last entry."""
    encoded, known = annotations_of(control_plane).get(CLUSTER_SPEC, ""), [*history(control_plane)]
    if not encoded or known[-1:] == [current := digest(encoded)]:
        return None
    return [*(each for each in known if each != current), current][-MAX_HISTORY:]


def approved_objects(control_plane: Object | None) -> Sequence[str]:
    """UIDs of the objects that the cluster was allowed to reference, oldest first."""
    return ((control_plane or {}).get("status") or {}).get("approvedObjects") or ()


def extended_approvals(control_plane: Object) -> list[str] | None:
    """The UIDs with those of the current spec; None if they have them."""
    known = approved_objects(control_plane)
    current = list(dict.fromkeys(each.uid for each in recorded(control_plane) or () if each.uid))[-MAX_APPROVED:]
    if set(current) <= set(known):
        return None
    return [*(each for each in known if each not in current), *current][-MAX_APPROVED:]


def modes_of(snapshot: Object, control_plane: Object | None) -> Sequence[str]:
    """Modes in which the snapshot can be restored."""
    encoded = encoded_spec(snapshot)
    return MODES if encoded and digest(encoded) in history(control_plane) else (NONE,)


def saved_spec(snapshot: Object, control_plane: Object | None) -> Object:
    """The spec that the cluster had at the time of the snapshot. Raises CannotRestore."""
    name, encoded = snapshot["metadata"]["name"], encoded_spec(snapshot)
    remedy = "restore only the data (restoreRKEConfig: none), and set the fields of the spec yourself"
    if not encoded:
        raise CannotRestore(f"snapshot {name} has no copy of the spec; {remedy}")
    if digest(encoded) not in history(control_plane):
        raise CannotRestore(f"the manager does not know the copy of the spec in snapshot {name}; {remedy}")
    try:
        return decode_spec(encoded)
    except ValueError as error:
        raise CannotRestore(f"snapshot {name}: {error}; {remedy}") from None


def saved_version(snapshot: Object) -> str:
    """The version that a server has reported with the snapshot, whether the copy is trusted or not; empty if none."""
    return version_in(encoded_spec(snapshot))


# --- the result -------------------------------------------------------------------------------------------------------


def restored_spec(spec: Object, saved: Object, mode: str) -> Object:
    """The spec with the fields that the mode takes from the saved one."""
    if mode == NONE:
        return spec
    if mode == VERSION:
        return _with_fields(spec, saved, ("kubernetesVersion",))
    config = _with_fields(spec.get("rkeConfig") or {}, saved.get("rkeConfig") or {}, _CONFIG_FIELDS)
    return _with_fields(spec, saved, _SPEC_FIELDS) | {"rkeConfig": config}


def _with_fields(current: Object, saved: Object, fields: Sequence[str]) -> Object:
    kept = {name: value for name, value in current.items() if name not in fields}
    return kept | {name: saved[name] for name in fields if saved.get(name) is not None}


def version_problem(current: str, saved: str) -> str:
    """Why data of one version cannot be restored in a cluster of the other; empty if it can."""
    now, then = version_of(current), version_of(saved)
    if then is None or now is None:
        return f'the snapshot names no version that can be installed: "{saved[:64]}"' if then is None else ""
    if now.facts != then.facts:
        return f"the snapshot is of {saved}; the distribution of {current} cannot be changed"
    if now.release >= _POD_SECURITY > then.release:
        return (
            f"the snapshot is of {saved}, and clusters of v1.25 or later, such as this one of {current}, cannot go back"
        )
    return ""
