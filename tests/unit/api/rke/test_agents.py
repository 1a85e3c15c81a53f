"""Node agents: which one is newer, and which machines get another one."""

from __future__ import annotations

import pytest

from herder.api.rke.node.agents import AgentState, ServedAgent, is_newer, own_source
from herder.api.settings import DEFINITIONS, SERVED_NODE_AGENT, Settings

SERVED = ServedAgent("1.2.0", "a" * 64)
OTHER = "b" * 64


@pytest.mark.parametrize(
    ("version", "than", "expected"),
    [
        ("1.2.1", "1.2.0", True),
        ("1.10.0", "1.9.9", True),
        ("1.2.0", "1.2.0.dev0", True),
        ("1.2.0rc1", "1.2.0.dev9", True),
        ("v1.3.0", "1.2.0", True),
        ("1.2.0", "1.2.0", False),
        ("1.2.0.dev0", "1.2.0", False),
        ("1.1.9", "1.2.0", False),
        ("", "1.2.0", False),
        ("9", "1.2.0", False),
        ("99999999999.0.0", "1.2.0", False),
        ("9.9.9; reboot", "1.2.0", False),
    ],
)
def test_versions_are_compared_by_number(version: str, than: str, expected: bool) -> None:
    assert is_newer(version, than) is expected


@pytest.mark.parametrize(
    ("version", "checksum", "state", "redeployed"),
    [
        ("1.2.0", "a" * 64, AgentState.CURRENT, False),
        ("1.3.0", "a" * 64, AgentState.CURRENT, False),
        ("1.2.0", OTHER, AgentState.OUTDATED, True),
        ("1.1.0", OTHER, AgentState.OUTDATED, True),
        ("unknown", OTHER, AgentState.OUTDATED, True),
        ("1.2.1", OTHER, AgentState.NEWER, False),
        ("", "", AgentState.UNREPORTED, True),
        ("1.2.1", "", AgentState.UNREPORTED, True),
    ],
)
def test_the_state_of_an_agent(version: str, checksum: str, state: AgentState, redeployed: bool) -> None:
    assert SERVED.compare(version, checksum) is state
    assert state.is_redeployed is redeployed


@pytest.mark.parametrize("text", ["", "1.2.0", f"1.2.0 {'A' * 64}", f"1.2.0 {'a' * 63}", f"1.2.0 {'a' * 64} x"])
def test_a_process_that_serves_no_agent(text: str) -> None:
    assert ServedAgent.of(text) is None


def test_the_agent_of_a_task_is_in_its_environment() -> None:
    assert ServedAgent.of(str(SERVED)) == SERVED
    assert ServedAgent.in_environment(("OPERATION=x", *SERVED.environment)) == SERVED
    assert ServedAgent.in_environment(("AGENT_VERSION=1.2.0",)) is None


def test_no_layer_of_settings_chooses_the_agent() -> None:
    """Otherwise an editor of a Setting, or of the environment, could choose what machines install."""
    name, chosen = SERVED_NODE_AGENT, f"9.9.9 {OTHER}"
    environment = {DEFINITIONS[name].environment: chosen}
    layers = {"flags": {name: chosen}, "environment": environment, "file": {name: chosen}}
    settings = Settings(**layers, objects=lambda _name: {"value": chosen}, detected={name: str(SERVED)})  # type: ignore[arg-type]
    assert settings.look(name) == (str(SERVED), "default")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ([], ""),
        ([{"name": "HTTP_PROXY", "value": "x"}], ""),
        ([{"name": "CATTLE_AGENT_BINARY_URL", "value": ""}], ""),
        ([{"name": "CATTLE_AGENT_BINARY_URL", "value": "https://x"}], "CATTLE_AGENT_BINARY_URL"),
        ([{"name": "CATTLE_AGENT_BINARY_BASE_URL", "value": "https://x"}], "CATTLE_AGENT_BINARY_BASE_URL"),
    ],
)
def test_machines_that_install_another_agent(variables: list[dict[str, str]], expected: str) -> None:
    assert own_source({"agentEnvVars": variables}) == expected
