"""Expiry of the certificates of all machines: a condition of the RKEControlPlane.

Machines are grouped by the expiry of their first certificates. So a pass reads only the Machines that it names, also
in a cluster with thousands of workers that are up to date.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple

from herder.api.capi.conditions import Condition, condition, find
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import is_deleting
from herder.api.rke.node.certificates import (
    CERTIFICATES_VALID,
    EXPIRED,
    EXPIRING,
    EXPIRY_WARNING,
    NOT_REPORTED,
    NodeCertificate,
    certificates_of,
)
from herder.api.rke.services import NO_AUTHORITY_ROTATION
from herder.api.times import parse_time
from herder.controllers.planner.rollout.machines import by_cluster
from herder.controllers.planner.rollout.scope import PlanScope, earliest
from herder.engine.control.cache import Key
from herder.engine.runtime.groups import Grouping
from herder.engine.runtime.view import View


class FirstExpiry(NamedTuple):
    """When the first certificates of a machine expire (RFC 3339); empty if it reports none."""

    leaf: str = ""
    authority: str = ""


def _first_expiry(view: View) -> tuple[str, FirstExpiry] | None:
    machine = view.get(MACHINE, view.name)
    scopes = by_cluster(machine) if machine is not None else ()
    if machine is None or not scopes or is_deleting(machine):
        return None
    certificates = certificates_of(machine)
    if not certificates:
        return None
    leaf = next((each.not_after for each in certificates if not each.is_authority), "")
    authority = next((each.not_after for each in certificates if each.is_authority), "")
    return scopes[0], FirstExpiry(leaf, authority)


CERTIFICATE_GROUPS: Grouping[FirstExpiry] = Grouping("certificate-expiry", MACHINE, _first_expiry)

_Groups = Mapping[FirstExpiry, Collection[Key]]


class CertificateStatus(NamedTuple):
    """The condition, if there is anything to report, and when it changes."""

    conditions: tuple[Condition, ...]
    wake_at: datetime | None


def check_certificates(scope: PlanScope) -> CertificateStatus:
    view = scope.view
    cluster = f"{view.namespace}/{scope.cluster['metadata']['name']}"
    groups: _Groups = view.groups(CERTIFICATE_GROUPS, cluster)
    if not groups:
        is_known = find(scope.control_plane, CERTIFICATES_VALID) is not None
        message = "no machine reports its certificates"
        unknown = (condition(CERTIFICATES_VALID, "Unknown", NOT_REPORTED, message),) if is_known else ()
        return CertificateStatus(unknown, None)
    times = {time for first in groups for text in first if (time := parse_time(text)) is not None}
    changes = (time for each in times for time in (each - EXPIRY_WARNING, each))
    wake_at = earliest(*(time for time in changes if time > view.now))
    found = (_describe(scope, groups, authorities=False), _describe(scope, groups, authorities=True))
    messages = [message for message in found if message]
    if not messages:
        return CertificateStatus((condition(CERTIFICATES_VALID, "True", ""),), wake_at)
    reason = EXPIRED if min(times) <= view.now else EXPIRING
    return CertificateStatus((condition(CERTIFICATES_VALID, "False", reason, "; ".join(messages)),), wake_at)


def _describe(scope: PlanScope, groups: _Groups, *, authorities: bool) -> str:
    """Describe the first certificate to expire, and how to renew it; empty if none expires soon."""
    view = scope.view
    limit = view.now + EXPIRY_WARNING
    due = {
        first: time
        for first in groups
        if (time := parse_time(first.authority if authorities else first.leaf)) is not None and time <= limit
    }
    if not due:
        return ""
    first = min(due, key=lambda each: (due[each], each))
    key = min(groups[first])
    found = _first_certificate(scope, key, authorities=authorities)
    if found is None:
        return ""
    verb = "expired" if due[first] <= view.now else "expires"
    others = sum(len(groups[each]) for each in due) - 1
    more = f" ({others} more machine{'s' if others > 1 else ''} with such certificates)" if others else ""
    what = "certificate authority" if authorities else "certificate"
    text = f"{what} {found.path} of machine {key.name} {verb} at {found.not_after}{more}"
    command = f"herder rotate certificates {scope.cluster['metadata']['name']}"
    if not authorities:
        return f"{text}; renew the certificates with: {command}"
    if reason := NO_AUTHORITY_ROTATION.get(scope.distribution.name):
        return f"{text}; {reason.partition(';')[0]}: move workloads to a new cluster"
    return f"{text}; rotate the certificate authorities with: {command} --ca"


def _first_certificate(scope: PlanScope, key: Key, *, authorities: bool) -> NodeCertificate | None:
    machine = scope.view.get(MACHINE, key.name, key.namespace)
    found = certificates_of(machine) if machine is not None else ()
    return next((each for each in found if each.is_authority is authorities), None)
