"""What the embedded distribution says to machines that it cannot make nodes of."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from herder.api.management.manifest import Agent
from herder.controllers.planner.distributions.embedded import LISTS, TEXTS, Embedded
from herder.controllers.planner.distributions.interface import (
    Authority,
    ClusterInputs,
    ConfigError,
    MachineInputs,
    Roles,
)

CLUSTER = ClusterInputs(
    namespace="fleet-default", name="demo", management_name="c-m-abcdefgh", version="v1.36.3+herder1", spec={}
)
SERVER = Roles(etcd=True, control_plane=True)
CASES = {
    "no address": (
        MachineInputs(name="m", uid="u", roles=SERVER, is_init=True),
        "machine m: has no address; register it with --internal-address",
    ),
    "a second server": (
        MachineInputs(name="m", uid="u", roles=SERVER, internal_addresses=("10.0.0.1",)),
        "machinePools: the embedded distribution supports a single server",
    ),
    "windows": (
        MachineInputs(name="m", uid="u", roles=Roles(worker=True), windows=True),
        "machinePools: the embedded distribution has no Windows nodes",
    ),
}


@pytest.mark.parametrize(("machine", "told"), CASES.values(), ids=CASES.keys())
def test_why_a_machine_cannot_be_a_node(machine: MachineInputs, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Embedded().render(CLUSTER, machine)


# --- what it is told of its Node ------------------------------------------------------------------------------------

READY = replace(
    CLUSTER,
    authorities={"ca": Authority("certificate", "key")},
    agent=Agent(server_url="https://manager.example", token="t", ca_checksum="", image=""),
)
NODE = MachineInputs(name="m", uid="u", roles=Roles(worker=True), internal_addresses=("10.0.0.1",))
EFFECTS = "NoSchedule|PreferNoSchedule|NoExecute"


def config_of(machine: MachineInputs = NODE, **config: Any) -> dict[str, Any]:
    plan = Embedded().render(replace(READY, spec={"machineGlobalConfig": config}), machine)
    [content] = [each.decoded for each in plan.files if each.path.endswith("50-rancher.yaml")]
    found: dict[str, Any] = json.loads(content)
    return found


def test_one_value_is_as_good_as_a_list_of_one() -> None:
    config = config_of(**{"node-label": "team=blue", "node-taint": ["a=b:NoExecute", "c:NoSchedule"], "tls-san": None})
    assert config["node-label"] == ["team=blue", "rke.cattle.io/machine=u"]
    assert config["node-taint"] == ["a=b:NoExecute", "c:NoSchedule"]
    assert "tls-san" not in config


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("node-label", "blue", '"blue" must be key=value'),
        ("node-label", ["=blue"], '"=blue" must be key=value'),
        ("node-label", [["a=b"]], '["a=b"] must be key=value'),
        ("node-taint", "a", f'"a" must be key[=value]:effect, the effect one of {EFFECTS}'),
        ("node-taint", [":NoExecute"], f'":NoExecute" must be key[=value]:effect, the effect one of {EFFECTS}'),
        ("node-taint", ["a:Never"], f'"a:Never" must be key[=value]:effect, the effect one of {EFFECTS}'),
        ("tls-san", [""], '"" must be a name or an address'),
        ("log-level", "loud", '"loud" must be debug, info, warning or error'),
        ("log-level", ["debug"], '["debug"] must be debug, info, warning or error'),
        ("colour", "blue", f"unknown option of the embedded distribution; use one of {', '.join((*LISTS, *TEXTS))}"),
    ],
)
def test_what_the_machine_could_not_read_is_told_before_it_is_asked_to(key: str, value: Any, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_of(**{key: value})
    assert str(error.value) == f"machineGlobalConfig.{key}: {told}"


@pytest.mark.parametrize("taint", [{}, {"key": "a"}, {"effect": "NoExecute"}, {"key": "a", "effect": "Never"}])
def test_a_taint_that_is_none_is_told(taint: dict[str, str]) -> None:
    """No Cluster has one: its schema asks for key and effect. An annotation can be edited by hand."""
    with pytest.raises(ConfigError, match=r"^machine m, annotation rke\.cattle\.io/taints: .* must be key\[=value\]"):
        config_of(replace(NODE, node_taints=[taint]))
