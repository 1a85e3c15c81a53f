"""Whatever users write where no schema stands in their way: it becomes a plan, or an error that names the field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from herder.api.rke import names
from herder.controllers.planner.distributions.interface import (
    ClusterInputs,
    ConfigError,
    MachineInputs,
    Reference,
    Referenced,
    Roles,
)
from herder.controllers.planner.distributions.rancher.distribution import Rancher
from herder.controllers.planner.distributions.rancher.runtime import K3S, RKE2
from tests.unit.controllers.planner.test_files import with_agent
from tests.unit.controllers.planner.test_vectors import cluster, server, worker

ODD: tuple[Any, ...] = (None, "", "x", "a: [", 0, -1, 1.5, True, [], [None], ["x", {}], [[1]], {}, {"a": {"b": [1]}})
ARGUMENTS = (*RKE2.arguments.agent, *RKE2.arguments.server, *K3S.arguments.agent, *K3S.arguments.server, "unknown", "")
TYPES = (
    names.AUTH_SECRET_TYPE,
    "Opaque",
    *(f"kubernetes.io/{name}" for name in ("basic-auth", "dockerconfigjson", "tls")),
)
BYTES = (b"", b"\xff\xfe", b"{}", b"[]", b"null", b"x" * 10)
MACHINES = (
    server(),
    server(is_init=False, join_url="https://10.0.0.1:9345", roles=Roles(etcd=True)),
    worker(),
    worker(windows=True),
)


def problems(given: ClusterInputs, machines: tuple[MachineInputs, ...] = MACHINES) -> Iterator[str]:
    """What is told; anything but an error of the configuration would be told to nobody."""
    for runtime in (RKE2, K3S):
        own = replace(given, version=f"v1.33.4+{runtime.name}{'r1' if runtime is RKE2 else '1'}")
        for machine in machines:
            if machine.windows and runtime is K3S:
                continue  # which has no such nodes
            try:
                Rancher(runtime).render(own, machine).to_json()
            except ConfigError as told:
                yield str(told)


@pytest.mark.parametrize("argument", sorted(set(ARGUMENTS)))
def test_of_an_argument(argument: str) -> None:
    for value in ODD:
        everywhere, selected = {argument: value}, [{"config": {argument: value}}]
        for told in problems(cluster(machineGlobalConfig=everywhere)):
            assert told.startswith(f"machineGlobalConfig.{argument}: ") or argument in told
        for told in problems(cluster(machineSelectorConfig=selected)):
            assert told.startswith(f"machineSelectorConfig[0].config.{argument}: ") or argument in told


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_of_a_chart(value: Any) -> None:
    for values in (value, {"global": value}, {"global": {"cattle": value}}):
        for told in problems(with_agent(cluster(chartValues={"rke2-calico": values}))):
            assert told.startswith("rkeConfig.chartValues.rke2-calico")


@pytest.mark.parametrize("content", BYTES, ids=repr)
@pytest.mark.parametrize(
    "type_",
    [
        names.AUTH_SECRET_TYPE,
        "kubernetes.io/basic-auth",
        "kubernetes.io/dockerconfigjson",
        "kubernetes.io/tls",
        "Opaque",
    ],
)
def test_of_the_secrets_that_a_registry_names(type_: str, content: bytes) -> None:
    keys = ("username", "password", "auth", "identityToken", ".dockerconfigjson", "tls.crt", "tls.key")
    referenced = {_secret("s"): Referenced({}, dict.fromkeys(keys, content), type_)}
    for field in ("authConfigSecretName", "tlsSecretName"):
        given = cluster(registries={"configs": {"m.example": {field: "s"}}})
        for told in problems(replace(given, referenced=referenced)):
            assert told.startswith(f"rkeConfig.registries.configs[m.example].{field}: ")


@pytest.mark.parametrize("bundle", ["x", "not base64!", "====", "QQ==", "é"])
def test_of_a_registry_s_authority(bundle: str) -> None:
    for told in problems(cluster(registries={"configs": {"m.example": {"caBundle": bundle}}})):
        assert told.startswith("rkeConfig.registries.configs[m.example].caBundle: ")


@pytest.mark.parametrize("content", BYTES, ids=repr)
def test_of_the_credential_of_snapshots(content: bytes) -> None:
    keys = ("accessKey", "secretKey", "defaultBucket", "defaultEndpointCA", "defaultSkipSSLVerify")
    given = cluster(etcd={"s3": {"cloudCredentialName": "s"}})
    referenced = {_secret("s"): Referenced({}, dict.fromkeys(keys, content))}
    for told in problems(replace(given, referenced=referenced)):
        assert told.startswith("rkeConfig.etcd.s3.cloudCredentialName: ")


@pytest.mark.parametrize("path", ["", "relative", "../up", "/ok", "C:\\x"])
@pytest.mark.parametrize("permissions", ["", "0644", "rw", "9999", "-1"])
def test_of_a_file_s_place_and_permissions(path: str, permissions: str) -> None:
    item = {"key": "k", "path": path, "permissions": permissions}
    sources = [{"secret": {"name": "s", "items": [item]}}]
    referenced = {_secret("s"): Referenced({names.AUTHORIZED_CLUSTERS: "demo"}, {"k": b"\xff"})}
    told = set(problems(replace(cluster(machineSelectorFiles=[{"fileSources": sources}]), referenced=referenced)))
    field = "rkeConfig.machineSelectorFiles[0].fileSources[0]: "
    assert all(each.startswith(field) for each in told)
    assert bool(told) is (path != "/ok" or permissions not in ("", "0644"))


def _secret(name: str) -> Reference:
    return Reference("Secret", "fleet-default", name)


@pytest.mark.parametrize("field", ["machineSelectorConfig", "machineSelectorFiles"])
def test_of_a_selector(field: str) -> None:
    odd = {"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}
    told = set(problems(cluster(**{field: [{"machineLabelSelector": odd}]})))
    assert len(told) == 1
    assert told.pop().startswith(f"{field}[0].machineLabelSelector.matchExpressions[0].operator: ")


def test_of_a_variable_without_a_name() -> None:
    assert not list(problems(cluster(agentEnvVars=[{"value": "x"}, {"name": "A"}])))
