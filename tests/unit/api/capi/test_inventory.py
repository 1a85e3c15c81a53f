from __future__ import annotations

import re

import pytest

from herder.api.capi.inventory import (
    PROVIDER_CRD,
    core_provider,
    in_memory_providers,
    is_ours,
    own_version,
)

ALL = (core_provider(), *in_memory_providers())


@pytest.mark.parametrize(
    ("name", "provider", "type_"),
    [
        ("cluster-api", "cluster-api", "CoreProvider"),
        ("infrastructure-inmemory", "inmemory", "InfrastructureProvider"),
        ("bootstrap-inmemory", "inmemory", "BootstrapProvider"),
        ("control-plane-inmemory", "inmemory", "ControlPlaneProvider"),
    ],
)
def test_each_part_of_ours_is_a_provider_that_clusterctl_finds_by_its_labels(
    name: str, provider: str, type_: str
) -> None:
    found = next(entry for entry in ALL if entry["metadata"]["name"] == name)
    assert (found["providerName"], found["type"]) == (provider, type_)
    assert found["metadata"]["labels"].items() >= {
        ("cluster.x-k8s.io/provider", name),
        ("clusterctl.cluster.x-k8s.io", ""),
        ("clusterctl.cluster.x-k8s.io/core", "inventory"),
    }


def test_versions_are_semantic_ones() -> None:
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", provider["version"]) for provider in ALL)


@pytest.mark.parametrize(("version", "told"), [("1.2.3", "v1.2.3"), ("0.1.0.dev0", "v0.1.0"), ("2.0.0rc1", "v2.0.0")])
def test_our_version_is_told_in_three_numbers(version: str, told: str) -> None:
    assert own_version(version) == told


def test_a_version_without_three_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="'7' must begin with three numbers"):
        own_version("7")


def test_ours_are_told_from_others() -> None:
    assert all(is_ours(provider) for provider in ALL)
    assert not is_ours({"metadata": {"name": "cluster-api", "namespace": "capi-system"}})


def test_clusterctl_takes_our_definition_for_its_own() -> None:
    assert PROVIDER_CRD["metadata"]["name"] == "providers.clusterctl.cluster.x-k8s.io"
    assert [version["name"] for version in PROVIDER_CRD["spec"]["versions"]] == ["v1alpha3"]
    assert PROVIDER_CRD["metadata"]["labels"] == {"clusterctl.cluster.x-k8s.io/core": "inventory"}
