"""Which distribution a version string asks for."""

from __future__ import annotations

import re

from herder.controllers.planner.distributions.embedded import Embedded
from herder.controllers.planner.distributions.interface import Distribution
from herder.controllers.planner.distributions.kubeadm.distribution import Kubeadm
from herder.controllers.planner.distributions.rancher.distribution import Rancher
from herder.controllers.planner.distributions.rancher.runtime import K3S, RKE2

_VERSION = re.compile(r"v\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?\+(?P<build>[0-9A-Za-z.-]+)")
_BUILDS: dict[str, Distribution] = {
    "k3s": Rancher(K3S),
    "rke2r": Rancher(RKE2),
    "kubeadm": Kubeadm(),
    "herder": Embedded(),
}


class UnknownVersion(ValueError):
    """The message names the field."""


def distribution_of(version: str) -> Distribution:
    found = _VERSION.fullmatch(version)
    build = re.match(r"(.*?)\d+(-.*)?$", found["build"]) if found else None
    distribution = _BUILDS.get(build[1]) if build else None
    if distribution is None:
        known = ", ".join(f"v1.33.4+{name}1" for name in _BUILDS)
        raise UnknownVersion(
            f'spec.kubernetesVersion: "{version}" names no distribution that is known here; say it as one of {known}'
        )
    return distribution


def release_of(version: str) -> tuple[int, ...]:
    """Of Kubernetes: numbers that compare as releases do; none of what is no version."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    return tuple(int(part) for part in found.groups()) if found else ()
