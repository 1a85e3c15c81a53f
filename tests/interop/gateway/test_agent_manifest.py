"""The manifest of the cluster agent, as both API servers accept it."""

from __future__ import annotations

import json

from herder.api.management.manifest import NAME, Agent, as_yaml, manifest
from herder.api.management.names import SYSTEM_NAMESPACE
from tests.support.engines import Engine

AGENT = Agent("https://manager.example.com", "token", "checksum", "agent:1")


def test_the_agent_leaves_a_lost_node_after_half_a_minute(engine: Engine) -> None:
    engine.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=as_yaml(manifest(AGENT)))
    stored = json.loads(engine.kubectl("get", "deployment", NAME, "-n", SYSTEM_NAMESPACE, "-o", "json").stdout)
    pod = stored["spec"]["template"]["spec"]
    seconds = {each["key"]: each.get("tolerationSeconds") for each in pod["tolerations"]}
    assert {key for key, value in seconds.items() if value == 30} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    (term,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    engine.kubectl("delete", "deployment", NAME, "-n", SYSTEM_NAMESPACE)


def test_before_a_network_exists_the_agent_stays() -> None:
    early = Agent("https://manager.example.com", "token", "checksum", "agent:1", pre_bootstrap=True)
    (deployment,) = [each for each in manifest(early) if each["kind"] == "Deployment"]
    tolerations = deployment["spec"]["template"]["spec"]["tolerations"]
    assert not any("tolerationSeconds" in each for each in tolerations)
