"""Look up the distribution that a Kubernetes version such as `v1.33.4+k3s1` names."""

from __future__ import annotations

from herder.api.rke import distributions
from herder.api.rke.distributions import DISTRIBUTIONS, version_of
from herder.controllers.planner.distributions.embedded import Embedded
from herder.controllers.planner.distributions.interface import Distribution
from herder.controllers.planner.distributions.kubeadm.distribution import Kubeadm
from herder.controllers.planner.distributions.rancher.distribution import Rancher
from herder.controllers.planner.distributions.rancher.runtime import K3S, RKE2

_RENDERERS: dict[distributions.Facts, Distribution] = {
    distributions.K3S: Rancher(K3S),
    distributions.RKE2: Rancher(RKE2),
    distributions.KUBEADM: Kubeadm(),
    distributions.EMBEDDED: Embedded(),
}


class UnknownVersion(ValueError):
    """The version names no known distribution. The message names the field."""


def distribution_of(version: str) -> Distribution:
    found = version_of(version)
    if found is None:
        known = ", ".join(f"v1.33.4+{facts.build}1" for facts in DISTRIBUTIONS)
        raise UnknownVersion(
            f'spec.kubernetesVersion: "{version}" names no distribution that is known here; say it as one of {known}'
        )
    return _RENDERERS[found.facts]
