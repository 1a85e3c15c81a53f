"""The operation scenarios of the upstream provisioning suite on real clusters of `local` machines.

`make soak` runs them with kubeadm, and with K3s if HERDER_K3S names its binary.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from herder.api.management.names import DEFAULT_WORKSPACE
from tests.provisioning.operations.clusters import Distribution
from tests.provisioning.operations.scenarios import CREDENTIAL, K3S, KUBEADM, SCENARIOS, Run
from tests.support.cloud.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.support.clusters import k3s_clusters, kubeadm_clusters
from tests.support.clusters.site import HOST, Object, Site, site_in

pytestmark = pytest.mark.soak


@dataclass(frozen=True)
class Place:
    """Where scenarios of one distribution run."""

    distribution: Distribution
    site: Site
    s3: S3Server


@pytest.fixture(scope="module", params=[KUBEADM, K3S])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("site")
    k3s = k3s_clusters.k3s_of(k3s_clusters.REAL, directory) if request.param == K3S else None
    with site_in(directory, {}, timeout=900, pods=True) as site:
        distribution = _k3s(site, k3s) if k3s else _kubeadm(site)
        (directory / "s3").mkdir()
        with S3Server(directory / "s3", HOST, site.command_prefix) as s3:
            site.eventually(lambda: site.applies(_credential()), "Secrets are served")
            yield Place(distribution, site, s3)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test(place: Place, scenario: str) -> None:
    faulthandler.cancel_dump_traceback_later()  # each step has its own timeout
    registered, steps = SCENARIOS[scenario]
    farm = steps(Run(place.distribution, place.site, place.s3, registered))
    farm.assert_deletion_leaves_nothing()


def _kubeadm(site: Site) -> Distribution:
    versions = kubeadm_clusters.VERSION, kubeadm_clusters.NEXT
    kubeadm_clusters.push_installer(site, versions[0], kubeadm_clusters.programs(site.directory / "programs"))
    kubeadm_clusters.push_installer(site, versions[1], kubeadm_clusters.next_programs(site.directory / "next"))
    return Distribution(KUBEADM, *versions, kubeadm_clusters.kubeadm_cluster)


def _k3s(site: Site, k3s: k3s_clusters.K3s) -> Distribution:
    """The other version is only requested: no machine installs it."""
    k3s_clusters.push_installer(site, k3s)

    def objects(name: str, pools: Mapping[str, int], **config: object) -> list[Object]:
        return k3s_clusters.k3s_cluster(name, k3s.version, pools, **config)

    return Distribution(K3S, k3s.version, k3s.version.replace("+k3s1", "+k3s9"), objects)


def _credential() -> Object:
    keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY, "defaultBucket": BUCKET}
    meta = {"name": CREDENTIAL, "namespace": DEFAULT_WORKSPACE}
    data = {f"s3credentialConfig-{name}": value for name, value in keys.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data}
