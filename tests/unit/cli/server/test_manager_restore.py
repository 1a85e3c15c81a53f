"""A manager restored from an old backup, with a machine added and the cluster upgraded since.

Everything is real except the size, as in `test_cluster_commands.py`. Nothing may be deleted, replaced or downgraded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from herder.api.management.differences import is_server
from tests.support.embedded import Embedded
from tests.support.kube import free_port
from tests.support.manager.machines import host_shutdown
from tests.support.manager.node_agents import eventually
from tests.unit.cli.cluster.test_lifecycle import CLUSTERS, NAME, NAMESPACE, Site
from tests.unit.cli.commands import expect_failure, herder

OLD, NEW = "v1.36.3+herder1", "v1.36.4+herder1"
FLAGS = ("--capi-core=own", "--machines", "--gateway")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster with one worker, its backup, and then one worker more and an upgrade."""
    directory = tmp_path_factory.mktemp("restored")
    data = directory / "data"
    with host_shutdown(data), Embedded(data, flags=FLAGS, listen=f"127.0.0.1:{free_port()}") as server:
        site = Site(server, directory)
        site.herder("create", "cluster", NAME, "--servers", "1", "--workers", "1")
        (directory / "cluster.yaml").write_text(site.herder("kubeconfig", NAME))
        herder("store", "backup", directory / "old.db", "--data-dir", data)
        site.herder("scale", "cluster", NAME, "workers=2")
        site.herder("upgrade", "cluster", NAME, NEW)
        yield site


def cluster(site: Site) -> Any:
    return site.kubectl("get", CLUSTERS, NAME, "-n", NAMESPACE)


def restore(site: Site) -> None:
    """Kill the manager, restore the backup, and start it again."""
    site.server.kill()
    herder("store", "restore", site.directory / "old.db", "--data-dir", site.server.directory)
    site.server.start()


def diff(site: Site) -> dict[tuple[str, str], bool]:
    """Whether each difference blocks, by reason and object."""
    found = json.loads(site.herder("resume", "cluster", NAME, "--diff", "-o", "json"))["clusters"][0]["differences"]
    return {(each["reason"], each["subject"]): each["blocks"] for each in found}


def everything(site: Site) -> tuple[Any, Any, Any]:
    """Machines of the host and Nodes of the cluster, by identity and version."""
    nodes = site.nodes()
    return (
        site.directories(),
        {name: node["metadata"]["uid"] for name, node in nodes.items()},
        {node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes.values()},
    )


def test_a_restored_manager_observes_and_changes_nothing(site: Site) -> None:
    before = everything(site)
    machines, servers = set(site.machines()), {name for name, node in site.nodes().items() if is_server(node)}
    assert len(servers) == 1
    restore(site)
    known = set(site.machines())
    (added,) = machines - known
    assert len(known) == 2

    eventually(lambda: "ObserveOnly" in site.herder("get", "clusters", "-n", NAMESPACE), "the state is shown")
    described = site.herder("describe", "cluster", NAME)
    assert described.startswith(f"cluster {NAME} is observe-only (restored from the backup of ")
    assert f"herder resume cluster {NAME}" in described.splitlines()[0]
    wanted = {("UnknownNode", f"Node {added}"): False}
    wanted |= {("NewerVersion", f"Node {each}"): each in servers for each in machines}
    wanted |= {("NewerPlan", f"Machine {each}"): False for each in known}
    eventually(lambda: diff(site) == wanted, "agents have connected and reported")

    # A user's edit is accepted, and has no effect yet.
    site.herder("scale", "cluster", NAME, "workers=0", "--no-wait")
    eventually(lambda: "observe-only" in refusals(site), "the scale-down is refused")
    message = expect_failure("wait", "cluster", NAME, KUBECONFIG=str(site.server.kubeconfig))
    assert f"cluster {NAME} is stalled: observe-only" in message
    assert f"herder resume cluster {NAME}" in message
    site.herder("scale", "cluster", NAME, "workers=1", "--no-wait")

    assert everything(site) == before
    assert set(site.machines()) == known


def refusals(site: Site) -> str:
    events = site.kubectl("get", "events", "-n", NAMESPACE)["items"]
    return "\n".join(each.get("note") or each.get("message") or "" for each in events)


def test_resume_refuses_a_downgrade_and_accepts_the_observed_version(site: Site) -> None:
    before, known = everything(site), site.uids()
    message = failing_resume(site)
    assert f"pass --accept-observed to raise spec.kubernetesVersion to {NEW}" in message
    assert cluster(site)["spec"]["kubernetesVersion"] == OLD

    output = site.herder("resume", "cluster", NAME, "--accept-observed")
    assert f"spec.kubernetesVersion raised from {OLD} to {NEW}" in output
    site.herder("wait", "cluster", NAME)
    assert everything(site) == before
    assert site.uids() == known
    assert "is not observe-only" in site.herder("resume", "cluster", NAME)


def failing_resume(site: Site, *flags: str) -> str:
    """The differences that the command prints, and its error."""
    result = herder("resume", "cluster", NAME, *flags, check=False, KUBECONFIG=str(site.server.kubeconfig))
    assert result.returncode == 1
    return f"{result.stdout}{result.stderr}"


def test_after_a_resume_the_cluster_can_be_scaled(site: Site) -> None:
    directories, nodes, _ = everything(site)
    site.herder("scale", "cluster", NAME, "workers=2")
    after = everything(site)
    assert after[0] > directories
    assert after[1].items() > nodes.items()
    assert len(after[1]) == len(nodes) + 1


def test_a_resume_that_ignores_differences_downgrades_nothing(site: Site) -> None:
    """The same backup again: now the manager knows even less."""
    before = everything(site)
    restore(site)
    eventually(lambda: any(reason == "NewerPlan" for reason, _ in diff(site)), "agents have connected and reported")
    site.herder("resume", "cluster", "--all", "--ignore-differences")
    refused = f"spec.kubernetesVersion: {OLD} is lower than {NEW}"
    eventually(lambda: refused in site.herder("describe", "cluster", NAME), "the old version is refused")
    assert everything(site) == before

    site.herder("upgrade", "cluster", NAME, NEW)
    assert everything(site) == before


def test_observe_only_can_be_requested(site: Site) -> None:
    """For a data directory that was rolled back as a whole, which the store cannot detect."""
    before = everything(site)
    assert site.server.stop() == 0
    site.server.flags = (*site.server.flags, "--observe-only")
    site.server.start()
    described = site.herder("describe", "cluster", NAME)
    assert described.startswith(f"cluster {NAME} is observe-only (requested by --observe-only)")
    eventually(lambda: ("NotComparable", "cluster") not in diff(site), "the agent has connected")

    # A request that may have run since the backup is not carried out with the other differences.
    site.herder("snapshot", "create", NAME, "--no-wait")
    eventually(lambda: diff(site).get(("OperationRequested", "cluster")), "the request is a difference")
    for flags in ((), ("--ignore-differences",)):
        message = failing_resume(site, *flags)
        assert "etcd snapshot 1 is requested, and may have run since the backup" in message
        assert f"herder resume cluster {NAME} -n {NAMESPACE} --drop-operations" in message
    output = site.herder("resume", "cluster", NAME, "--drop-operations")
    assert "operations from before the backup are dropped" in output
    site.herder("wait", "cluster", NAME)
    assert json.loads(site.herder("operations", NAME, "-o", "json")) == {}
    assert everything(site) == before
    created = site.herder("snapshot", "create", NAME)
    assert "etcd snapshot 2" in created
