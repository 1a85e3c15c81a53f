"""Rendered kubeconfigs, including that of a provisioned cluster."""

from __future__ import annotations

import base64

import yaml

from herder.api.identity.kubeconfigs import (
    MANAGER_ENTRY,
    Manager,
    cluster_entries,
    config,
    provisioned_binding,
    provisioned_data,
)
from herder.engine.client.kubeconfig import parse

MANAGER = Manager("https://manager:8443/", "-----BEGIN CERTIFICATE-----\n")


def test_clusters_of_the_same_name_are_named_by_their_ids() -> None:
    entries = cluster_entries(MANAGER, {"c-m-1": "meadow", "c-m-2": "meadow", "c-m-3": "hill"}, "alice")
    assert [entry.name for entry in entries] == ["c-m-1", "c-m-2", "hill"]
    assert entries[2].server == "https://manager:8443/k8s/clusters/c-m-3"


def test_a_display_name_cannot_be_that_of_another_cluster_or_the_manager() -> None:
    display_names = {"c-m-1": "c-m-3", "c-m-2": "hill", "c-m-3": "hill", "c-m-4": MANAGER_ENTRY, "c-m-5": "c-m-5"}
    entries = cluster_entries(MANAGER, display_names, "alice")
    assert [entry.name for entry in entries] == list(display_names)


def test_display_names_with_control_characters_are_not_used() -> None:
    entries = cluster_entries(MANAGER, {"c-m-1": "hill\x1b]0;title\x07", "c-m-2": "Höhe 7"}, "alice")
    assert [entry.name for entry in entries] == ["c-m-1", "Höhe 7"]


def test_without_a_ca_system_certificates_are_trusted() -> None:
    rendered = config(Manager("https://m"), cluster_entries(Manager("https://m"), {"c": "c"}, "a"), {"a": {}})
    assert rendered["clusters"][0]["cluster"] == {"server": "https://m/k8s/clusters/c"}


def test_the_secret_of_a_provisioned_cluster_has_a_kubeconfig_and_a_token() -> None:
    data = {key: base64.b64decode(value).decode() for key, value in provisioned_data(MANAGER, "c-m-1", "u-1:k").items()}
    assert set(data) == {"value", "token"}
    assert data["token"] == "u-1:k"
    rendered = yaml.safe_load(data["value"])
    assert rendered["current-context"] == rendered["contexts"][0]["name"] == "default"
    assert rendered["contexts"][0]["context"] == {"cluster": "cluster", "user": "user"}
    connection = parse(data["value"])
    assert (connection.server, connection.token) == ("https://manager:8443/k8s/clusters/c-m-1", "u-1:k")
    assert connection.ca == b"-----BEGIN CERTIFICATE-----\n"


def test_the_user_of_a_provisioned_cluster_owns_only_that_cluster() -> None:
    binding = provisioned_binding("fleet-default", "demo", "c-m-1")
    assert binding["metadata"]["namespace"] == binding["clusterName"] == "c-m-1"
    assert (binding["userName"], binding["roleTemplateName"]) == ("u-l3jmhncqjg", "cluster-owner")
