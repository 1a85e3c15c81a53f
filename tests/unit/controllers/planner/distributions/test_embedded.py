"""Plans of the embedded distribution: which machines and arguments it rejects, and the configuration of Nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from herder.api.management.manifest import Agent
from herder.api.rke.machine_config.embedded import LISTS, TEXTS
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.names import AUTHORIZED_CLUSTERS
from herder.controllers.planner.distributions.embedded import Embedded
from herder.controllers.planner.distributions.interface import (
    Authority,
    ClusterInputs,
    MachineInputs,
    Referenced,
    Roles,
)

CLUSTER = ClusterInputs(
    namespace="fleet-default", name="demo", management_name="c-m-abcdefgh", version="v1.36.3+herder1", spec={}
)
SERVER = Roles(etcd=True, control_plane=True)
CASES = {
    "no address": (
        MachineInputs(name="m", uid="u", roles=SERVER, is_init=True),
        "machine m: has no address; delete it and register it again with --internal-address",
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


@pytest.mark.parametrize(("machine", "expected"), CASES.values(), ids=CASES.keys())
def test_a_machine_that_cannot_become_a_node_is_an_error(machine: MachineInputs, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Embedded().render(CLUSTER, machine)


# --- configuration of the Node --------------------------------------------------------------------------------------

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


def test_a_single_value_counts_as_a_list_of_one() -> None:
    config = config_of(**{"node-label": "team=blue", "node-taint": ["a=b:NoExecute", "c:NoSchedule"], "tls-san": None})
    assert config["node-label"] == ["team=blue", "rke.cattle.io/machine=u"]
    assert config["node-taint"] == ["a=b:NoExecute", "c:NoSchedule"]
    assert "tls-san" not in config


@pytest.mark.parametrize(
    ("key", "value", "expected"),
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
def test_invalid_arguments_are_errors_that_name_the_field(key: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_of(**{key: value})
    assert str(error.value) == f"machineGlobalConfig.{key}: {expected}"


@pytest.mark.parametrize("taint", [{}, {"key": "a"}, {"effect": "NoExecute"}, {"key": "a", "effect": "Never"}])
def test_an_invalid_taint_annotation_is_an_error(taint: dict[str, str]) -> None:
    """The schema of Clusters requires key and effect, but an annotation can be edited by hand."""
    with pytest.raises(ConfigError, match=r"^machine m, annotation rke\.cattle\.io/taints: .* must be key\[=value\]"):
        config_of(replace(NODE, node_taints=[taint]))


def test_machines_get_the_files_that_users_select_for_them() -> None:
    source = {"name": "files", "items": [{"key": "a", "path": "/etc/a"}]}
    spec = {"machineSelectorFiles": [{"fileSources": [{"secret": source}]}]}
    (reference,) = Embedded().references(spec, CLUSTER.namespace)
    found = Referenced({AUTHORIZED_CLUSTERS: CLUSTER.name}, {"a": b"content"})
    plan = Embedded().render(replace(READY, spec=spec, referenced={reference: found}), NODE)
    assert [each.decoded for each in plan.files if each.path == "/etc/a"] == [b"content"]
