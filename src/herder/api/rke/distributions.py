"""Facts about distributions of Kubernetes, and how versions are read: for admission, guards and the planner alike.

A guard must not import the planner that it checks, so what both need to know is data here. A distribution without an
entry does not exist: versions that name it are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from herder.api.rke.names import ALLOW_VERSION_SKIP
from herder.api.rke.plan import Plan


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of every cluster of one distribution."""

    name: str
    build: str  # how the build metadata of its versions begins: `rke2r` of v1.33.4+rke2r1
    member_removal: str
    """The prefix of the Node annotations `<prefix>/remove` and `<prefix>/removed-node-name`, by which servers remove a
    member from etcd; empty where there is no etcd to leave."""
    together: str = ""  # why etcd and control plane must be on the same machines; empty where they need not be


K3S = Facts("k3s", "k3s", "etcd.k3s.cattle.io")
RKE2 = Facts("rke2", "rke2r", "etcd.rke2.cattle.io")
KUBEADM = Facts(
    "kubeadm", "kubeadm", "etcd.kubeadm.cattle.io", "kubeadm runs etcd and control plane on the same machines"
)
EMBEDDED = Facts("embedded", "herder", "", "the embedded distribution has etcd and control plane in one program")

DISTRIBUTIONS = (K3S, RKE2, KUBEADM, EMBEDDED)
BY_BUILD = {facts.build: facts for facts in DISTRIBUTIONS}


class Release(NamedTuple):
    """Of Kubernetes: compares as releases do."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"v{self.major}.{self.minor}.{self.patch}"


class Version(NamedTuple):
    """A version that names a distribution, such as v1.33.4+k3s1."""

    facts: Facts
    release: Release
    suffix: str  # what follows the build number: builds that were never published have one


# Numbers have a limit: a version is part of image tags, and converting long numbers raises.
_RELEASE = r"v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})"
_VERSION = re.compile(rf"{_RELEASE}(?:-[0-9A-Za-z.-]{{1,40}})?\+([a-z0-9]*?[a-z])[0-9]{{1,4}}(-[0-9A-Za-z.-]{{1,40}})?")
_LEADING = re.compile(rf"{_RELEASE}(?![0-9])")
_TAG = re.compile(r":v([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(?![0-9])[^:/]*$")


def version_of(text: str) -> Version | None:
    """None for what names no known distribution."""
    found = _VERSION.fullmatch(text)
    facts = BY_BUILD.get(found[4]) if found and text.startswith("v") else None
    return Version(facts, _release(found), found[5] or "") if found and facts else None


def release_of(text: str) -> Release | None:
    """Of any version, with or without a distribution; None for what is no version."""
    found = _LEADING.match(text)
    return _release(found) if found else None


def release_in(plan: Plan | None) -> Release | None:
    """Of the Kubernetes that a plan installs; None where it installs none."""
    images = [each.image for each in plan.instructions if each.name == "install"] if plan else []
    found = _TAG.search(images[0]) if images else None
    return _release(found) if found else None


# --- version skew ---------------------------------------------------------------------------------------------------

OLDEST_KUBELET = 3
"""So many minor versions a kubelet may be behind its API servers, by Kubernetes' version skew policy: a worker that
missed upgrades may catch up in one step. Servers may not: each minor version converts what the last one stored."""
_MOST_LISTED = 10


def skipped_minors(before: Release, after: Release, step: int = 1) -> list[str]:
    """Minor versions between the two, where `after` is more than `step` of them ahead; empty where it is not."""
    if after.major != before.major:
        return [f"v{after.major}.0"] if after.major > before.major and after.minor > 0 else []
    if after.minor - before.minor <= step:
        return []
    between = range(before.minor + 1, after.minor)
    return [f"v{after.major}.{minor}" for minor in between[:_MOST_LISTED]] + ["…"][: len(between) > _MOST_LISTED]


def skips(before: Release, after: str, annotations: Mapping[str, str], step: int = 1) -> str:
    """Which versions to upgrade to first, in words; empty where `after` may follow, or the annotation allows it.

    The annotation names the one version that it is for, so that it is no permission for later upgrades.
    """
    wanted = release_of(after)
    missing = skipped_minors(before, wanted, step) if wanted else []
    if not missing or annotations.get(ALLOW_VERSION_SKIP) == after:
        return ""
    return (
        f"{after} skips minor versions after {before}: upgrade to {', '.join(missing)} first, one after the other; "
        f"to skip them, set annotation {ALLOW_VERSION_SKIP} to {after}"
    )


def _release(found: re.Match[str]) -> Release:
    return Release(int(found[1]), int(found[2]), int(found[3]))
