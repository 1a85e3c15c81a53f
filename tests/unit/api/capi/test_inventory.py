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
def test_each_built_in_provider_has_the_labels_of_clusterctl(name: str, provider: str, type_: str) -> None:
    found = next(entry for entry in ALL if entry["metadata"]["name"] == name)
    assert (found["providerName"], found["type"]) == (provider, type_)
    assert found["metadata"]["labels"].items() >= {
        ("cluster.x-k8s.io/provider", name),
        ("clusterctl.cluster.x-k8s.io", ""),
        ("clusterctl.cluster.x-k8s.io/core", "inventory"),
    }


def test_provider_versions_are_semantic() -> None:
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", provider["version"]) for provider in ALL)


@pytest.mark.parametrize(
    ("version", "expected"), [("1.2.3", "v1.2.3"), ("0.1.0.dev0", "v0.1.0"), ("2.0.0rc1", "v2.0.0")]
)
def test_own_version_has_three_numbers(version: str, expected: str) -> None:
    assert own_version(version) == expected


def test_a_version_without_three_numbers_is_rejected() -> None:
    with pytest.raises(ValueError, match="'7' must begin with three numbers"):
        own_version("7")


def test_built_in_providers_are_recognized() -> None:
    assert all(is_ours(provider) for provider in ALL)
    assert not is_ours({"metadata": {"name": "cluster-api", "namespace": "capi-system"}})


def test_the_provider_definition_matches_that_of_clusterctl() -> None:
    assert PROVIDER_CRD["metadata"]["name"] == "providers.clusterctl.cluster.x-k8s.io"
    assert [version["name"] for version in PROVIDER_CRD["spec"]["versions"]] == ["v1alpha3"]
    assert PROVIDER_CRD["metadata"]["labels"] == {"clusterctl.cluster.x-k8s.io/core": "inventory"}
