"""Strategies of nodes, persistent volumes and claims, and certificate signing requests."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterable

from herder.engine.apiserver.builtin.strategies import checks
from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import Errors, checked, unchanged
from herder.engine.apiserver.builtin.strategies.warnings import fractional_bytes
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta import names, quantity
from herder.engine.meta.errors import duplicate, forbidden_field, invalid_value, not_supported, required
from herder.engine.meta.kinds import Object

_PEM = b"-----BEGIN CERTIFICATE REQUEST-----"
_ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")


class NodeStrategy(BuiltinStrategy):
    """A node may be created including its status, as kubelets do."""

    def __init__(self) -> None:
        super().__init__()

    def prepare_update(self, obj: Object, old: Object, context: Context) -> None:
        kept = "spec" if context.subresource == "status" else "status"
        obj[kept] = copy.deepcopy(old.get(kept, {}))

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj.get("spec") or {}
        seen: set[tuple[str, str]] = set()
        for position, taint in enumerate(spec.get("taints") or ()):
            at, key, effect = f"metadata.taints[{position}]", taint.get("key", ""), taint.get("effect", "")
            yield from checked(key, f"{at}.key", names.qualified_name)
            yield from checked(taint.get("value", ""), f"{at}.value", names.label_value)
            effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
            yield from checks.one_of(effect, f"{at}.effect", effects)
            if (key, effect) in seen:
                yield duplicate(at, taint)
            seen.add((key, effect))
        for position, block in enumerate(spec.get("podCIDRs") or ()):
            yield from checks.cidr(block, f"spec.podCIDRs[{position}]")

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        new, before = obj.get("spec") or {}, old.get("spec") or {}
        if before.get("podCIDRs") and new.get("podCIDRs") != before["podCIDRs"]:
            yield forbidden_field("spec.podCIDRs", 'node updates may not change podCIDR except from "" to valid')
        if before.get("providerID") and new.get("providerID") != before["providerID"]:
            problem = 'node updates may not change providerID except from "" to valid'
            yield forbidden_field("spec.providerID", problem)

    def fields(self, obj: Object) -> dict[str, str]:
        return {"spec.unschedulable": "true" if obj.get("spec", {}).get("unschedulable") else "false"}


class PersistentVolumeStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(status="core.v1.PersistentVolumeStatus")

    def prepare_create(self, obj: Object, context: Context) -> None:
        now = context.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": now}

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj.get("spec") or {}
        yield from _access_modes(spec.get("accessModes"), "spec.accessModes")
        capacity = spec.get("capacity") or {}
        if not capacity:
            yield required("spec.capacity")
        if "storage" not in capacity or len(capacity) > 1:
            yield not_supported("spec.capacity", capacity, ["storage"])
        elif quantity.parse(capacity["storage"]).sign <= 0:
            yield invalid_value("spec.capacity[storage]", capacity["storage"], "must be greater than zero")
        policy = spec.get("persistentVolumeReclaimPolicy")
        if policy not in {"Delete", "Recycle", "Retain"}:
            at = "spec.persistentVolumeReclaimPolicy"
            yield not_supported(at, policy, ["Delete", "Recycle", "Retain"])

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        new, before = obj.get("spec") or {}, old.get("spec") or {}
        yield from unchanged(new.get("volumeMode"), before.get("volumeMode"), "spec.volumeMode")


class PersistentVolumeClaimStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(status="core.v1.PersistentVolumeClaimStatus")

    def new_status(self) -> Object:
        return {"phase": "Pending"}

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj.get("spec") or {}
        yield from _access_modes(spec.get("accessModes"), "spec.accessModes")
        wanted = (spec.get("resources") or {}).get("requests") or {}
        if "storage" not in wanted:
            yield required("spec.resources[storage]")
        elif quantity.parse(wanted["storage"]).sign <= 0:
            yield invalid_value("spec.resources[storage]", wanted["storage"], "must be greater than zero")
        yield from checks.selector(spec.get("selector"), "spec.selector")
        if spec.get("storageClassName"):
            yield from checked(spec["storageClassName"], "spec.storageClassName", names.dns1123_subdomain)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        if context.subresource:
            return
        changeable = ("resources", "volumeAttributesClassName")
        new = {key: value for key, value in (obj.get("spec") or {}).items() if key not in changeable}
        before = {key: value for key, value in (old.get("spec") or {}).items() if key not in changeable}
        if not before.get("volumeName"):  # set by volume binding
            new.pop("volumeName", None)
        if new != before:
            problem = (
                "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound "
                "claims\n"
            )
            yield forbidden_field("spec", problem)

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        wanted = ((obj.get("spec") or {}).get("resources") or {}).get("requests") or {}
        return fractional_bytes(wanted.get("storage"), "spec.resources.requests[storage]")


def _access_modes(modes: list[str] | None, path: str) -> Errors:
    if not modes:
        yield required(path, "at least 1 access mode is required")
    for mode in modes or ():
        if mode not in _ACCESS_MODES:
            yield not_supported(path, mode, _ACCESS_MODES)
    if modes and "ReadWriteOncePod" in modes and len(modes) > 1:
        problem = "may not use ReadWriteOncePod with other access modes"
        yield forbidden_field(path, problem)


class CertificateRequestStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(status="certificates.v1.CertificateSigningRequestStatus")

    def prepare_create(self, obj: Object, context: Context) -> None:
        """Set the requester from the authenticated user, whatever the object says."""
        super().prepare_create(obj, context)
        spec, user = obj["spec"], context.user
        spec["username"] = user.name
        for key, value in (("uid", user.uid), ("groups", list(user.groups))):
            if value:
                spec[key] = value
            else:
                spec.pop(key, None)
        if user.extra:
            spec["extra"] = {key: list(values) for key, values in user.extra.items()}
        else:
            spec.pop("extra", None)

    def prepare_update(self, obj: Object, old: Object, context: Context) -> None:
        if context.subresource not in {"status", "approval"}:
            obj["status"] = copy.deepcopy(old.get("status", {}))
        obj["spec"] = copy.deepcopy(old["spec"])

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj.get("spec") or {}
        request = spec.get("request") or ""
        if _PEM not in base64.b64decode(request):
            yield invalid_value("spec.request", request, "PEM block type must be CERTIFICATE REQUEST")
        if not spec.get("usages"):
            yield required("spec.usages", "usages must be provided")
        signer = spec.get("signerName", "")
        if not signer:
            yield required("spec.signerName")
        elif "/" not in signer:
            problem = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
            yield invalid_value("spec.signerName", signer, problem)
        seconds = spec.get("expirationSeconds")
        if seconds is not None and seconds < 600:
            yield invalid_value(
                "spec.expirationSeconds", seconds, "may not specify a duration less than 600 seconds (10 minutes)"
            )

    def fields(self, obj: Object) -> dict[str, str]:
        return {"spec.signerName": obj.get("spec", {}).get("signerName", "")}
