"""Digests of plan inputs are stored, so renamed fields must not change them."""

from __future__ import annotations

from dataclasses import fields, replace

from herder.api.management.manifest import Agent
from herder.controllers.planner.distributions.interface import (
    Authority,
    ClusterInputs,
    EncryptionKeys,
    MachineInputs,
    Reference,
    Referenced,
    Roles,
)

CLUSTER = ClusterInputs(
    "fleet-default",
    "demo",
    "c-m-abc",
    "v1.34.1+k3s1",
    {"machineGlobalConfig": {"disable": ["traefik"]}},
    {"a": "b"},
    3,
    True,
    "server-token",
    "agent-token",
    {"ca": Authority("certificate", "key")},
    Agent("https://manager", "token", "checksum", "image", False, ({"name": "A", "value": "B"},), True),
    "PEM",
    "rancher/system-agent-installer-",
    "registry.example.com",
    True,
    {Reference("Secret", "fleet-default", "auth"): Referenced({"c": "d"}, {"e": b"\x00f"}, "Opaque")},
    ("https://server:9345",),
)
MACHINE = MachineInputs(
    "demo-a", "uid", Roles(True, True, False), True, "https://server:9345", True, {"g": "h"}, "node", {"i": "j"},
    ({"key": "k", "effect": "NoSchedule"},), ("10.0.0.1",), ("192.0.2.1",), "2001:db8::1", "process", True,
)  # fmt: skip


def test_the_digest_of_a_cluster_equals_that_of_the_first_release() -> None:
    assert CLUSTER.digest == "4c2d8624bd906aa2d65c6b81a20be86dbb43047e44ac6c496ec7e8cd92129d31"
    assert (
        ClusterInputs("a", "b", "", "v1", {}).digest
        == "313f4bd63fa5dca4029267f51774717aedc9af4315bd5ae5c6f394fdf7fe1b43"
    )


def test_the_digest_of_a_machine_equals_that_of_the_first_release() -> None:
    assert MACHINE.digest == "ab1243d2d9aae29e81c700ac5b2d6fe58392b050d596f59c5b7154f3732b9773"
    assert MachineInputs("a", "b", Roles()).digest == "97638efce89758c4f1fb9df15b13175e290915ac0065f73d5995021284627aa0"


def test_every_input_is_part_of_its_digest() -> None:
    """The objects above differ from the defaults in every field, so these counts prove that all fields are covered."""
    assert len(fields(ClusterInputs)) == 19
    assert len(fields(MachineInputs)) == 16
    assert len(fields(Agent)) == 8
    assert replace(MACHINE, reports_agent=True).digest != MACHINE.digest
    keys = EncryptionKeys((2, 1), {1: "old", 2: "new"})
    others = (EncryptionKeys((1, 2), keys.keys), EncryptionKeys((2, 1), {1: "old", 2: "other"}), None)
    digests = {replace(CLUSTER, encryption=each).digest for each in (keys, *others)}
    assert len(digests) == 4
    assert CLUSTER.digest in digests, "clusters without keys of the manager are not planned again"
    assert CLUSTER.agent is not None
    customized = replace(CLUSTER, agent=replace(CLUSTER.agent, customization={"appendTolerations": []}))
    assert customized.digest != CLUSTER.digest
