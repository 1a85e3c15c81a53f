"""Facts about Kubernetes distributions, and version parsing, shared by admission, guards and the planner.

A guard must not import the planner it checks, so this data lives here. Versions of a distribution without an entry are
rejected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from herder.api.rke.names import ALLOW_VERSION_SKIP
from herder.api.rke.node.plan import Plan


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of a distribution."""

    name: str
    build: str  # prefix of the build metadata of its versions: `rke2r` in v1.33.4+rke2r1
    member_removal: str
    """Prefix of the Node annotations `<prefix>/remove` and `<prefix>/removed-node-name`, by which servers remove an
    etcd member; empty if there is no etcd member to remove.
    """
    # why etcd and control plane roles must be on the same machines; empty if they need not be
    colocation_reason: str = ""
    max_servers: int | None = None  # machines with etcdRole and controlPlaneRole; None if unlimited


K3S = Facts("k3s", "k3s", "etcd.k3s.cattle.io")
RKE2 = Facts("rke2", "rke2r", "etcd.rke2.cattle.io")
KUBEADM = Facts(
    "kubeadm", "kubeadm", "etcd.kubeadm.cattle.io", "kubeadm runs etcd and control plane on the same machines"
)
EMBEDDED = Facts(
    "embedded",
    "herder",
    "",
    "the embedded distribution runs etcd and control plane in one process",
    max_servers=1,
)

DISTRIBUTIONS = (K3S, RKE2, KUBEADM, EMBEDDED)
BY_BUILD = {facts.build: facts for facts in DISTRIBUTIONS}


class Release(NamedTuple):
    """A Kubernetes release; ordered."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"v{self.major}.{self.minor}.{self.patch}"


class Version(NamedTuple):
    """A version that names a distribution, such as v1.33.4+k3s1."""

    facts: Facts
    release: Release
    suffix: str  # what follows the build number; only unpublished builds have one


# Numbers are limited: a version becomes part of image tags, and converting long numbers raises.
_RELEASE = r"v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})"
_VERSION = re.compile(rf"{_RELEASE}(?:-[0-9A-Za-z.-]{{1,40}})?\+([a-z0-9]*?[a-z])[0-9]{{1,4}}(-[0-9A-Za-z.-]{{1,40}})?")
_LEADING = re.compile(rf"{_RELEASE}(?![0-9])")
_TAG = re.compile(r":v([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(?![0-9])[^:/]*$")


def version_of(text: str) -> Version | None:
    """Parse a version; None if it names no known distribution."""
    found = _VERSION.fullmatch(text)
    facts = BY_BUILD.get(found[4]) if found and text.startswith("v") else None
    return Version(facts, _release(found), found[5] or "") if found and facts else None


def release_of(text: str) -> Release | None:
    """Return the release of any version, with or without a distribution; None if it is invalid."""
    found = _LEADING.match(text)
    return _release(found) if found else None


def release_in(plan: Plan | None) -> Release | None:
    """Return the Kubernetes release that a plan installs; None if it installs none."""
    images = [each.image for each in plan.instructions if each.name == "install"] if plan else []
    found = _TAG.search(images[0]) if images else None
    return _release(found) if found else None


# --- version skew ---------------------------------------------------------------------------------------------------

MAX_KUBELET_SKEW = 3
"""Maximum number of minor versions a kubelet may be behind the API server (Kubernetes version skew policy).

A worker may skip minor versions in one upgrade; a server may not, because each minor version converts what the previous
one stored.
"""
_MAX_LISTED = 10


def skipped_minors(before: Release, after: Release, step: int = 1) -> list[str]:
    """Return the minor versions between the two, if `after` is more than `step` ahead; empty otherwise."""
    if after.major != before.major:
        return [f"v{after.major}.0"] if after.major > before.major and after.minor > 0 else []
    if after.minor - before.minor <= step:
        return []
    between = range(before.minor + 1, after.minor)
    return [f"v{after.major}.{minor}" for minor in between[:_MAX_LISTED]] + ["…"][: len(between) > _MAX_LISTED]


def skip_error(before: Release, after: str, annotations: Mapping[str, str], step: int = 1) -> str:
    """Return an error that names the versions to upgrade to first; "" if `after` is allowed.

    The annotation that allows a skip names one version, so it does not allow later upgrades.
    """
    wanted = release_of(after)
    missing = skipped_minors(before, wanted, step) if wanted else []
    if not missing or annotations.get(ALLOW_VERSION_SKIP) == after:
        return ""
    return (
        f"{after} skips minor versions after {before}: upgrade to {', '.join(missing)} first, one at a time; "
        f"to skip them anyway, set annotation {ALLOW_VERSION_SKIP} to {after}"
    )


def _release(found: re.Match[str]) -> Release:
    return Release(int(found[1]), int(found[2]), int(found[3]))
