"""Values that no schema validates become a plan, or an error that names the field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from herder.api.rke import names
from herder.api.rke.machine_config.errors import ConfigError
from herder.controllers.planner.distributions.interface import (
    ClusterInputs,
    MachineInputs,
    Reference,
    Referenced,
    Roles,
)
from herder.controllers.planner.distributions.rancher.distribution import Rancher
from herder.controllers.planner.distributions.rancher.runtime import K3S, RKE2
from tests.unit.controllers.planner.distributions.inputs import cluster, server, with_agent, worker

INVALID_VALUES: tuple[Any, ...] = (
    None,
    "",
    "x",
    "a: [",
    0,
    -1,
    1.5,
    True,
    [],
    [None],
    ["x", {}],
    [[1]],
    {},
    {"a": {"b": [1]}},
)
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


def config_errors(inputs: ClusterInputs, machines: tuple[MachineInputs, ...] = MACHINES) -> Iterator[str]:
    """The configuration errors; any other exception would fail the reconcile without a message."""
    for runtime in (RKE2, K3S):
        versioned = replace(inputs, version=f"v1.33.4+{runtime.name}{'r1' if runtime is RKE2 else '1'}")
        for machine in machines:
            if machine.windows and runtime is K3S:
                continue  # K3s has no Windows nodes
            try:
                Rancher(runtime).render(versioned, machine).to_json()
            except ConfigError as error:
                yield str(error)


@pytest.mark.parametrize("argument", sorted(set(ARGUMENTS)))
def test_invalid_arguments(argument: str) -> None:
    for value in INVALID_VALUES:
        everywhere, selected = {argument: value}, [{"config": {argument: value}}]
        for error in config_errors(cluster(machineGlobalConfig=everywhere)):
            assert error.startswith(f"machineGlobalConfig.{argument}: ") or argument in error
        for error in config_errors(cluster(machineSelectorConfig=selected)):
            assert error.startswith(f"machineSelectorConfig[0].config.{argument}: ") or argument in error


@pytest.mark.parametrize("value", INVALID_VALUES, ids=repr)
def test_invalid_chart_values(value: Any) -> None:
    for values in (value, {"global": value}, {"global": {"cattle": value}}):
        for error in config_errors(with_agent(cluster(chartValues={"rke2-calico": values}))):
            assert error.startswith("rkeConfig.chartValues.rke2-calico")


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
def test_invalid_registry_secrets(type_: str, content: bytes) -> None:
    keys = ("username", "password", "auth", "identityToken", ".dockerconfigjson", "tls.crt", "tls.key")
    referenced = {_secret("s"): Referenced({}, dict.fromkeys(keys, content), type_)}
    for field in ("authConfigSecretName", "tlsSecretName"):
        inputs = cluster(registries={"configs": {"m.example": {field: "s"}}})
        for error in config_errors(replace(inputs, referenced=referenced)):
            assert error.startswith(f"rkeConfig.registries.configs[m.example].{field}: ")


@pytest.mark.parametrize("bundle", ["x", "not base64!", "====", "QQ==", "é"])
def test_invalid_registry_ca_bundles(bundle: str) -> None:
    for error in config_errors(cluster(registries={"configs": {"m.example": {"caBundle": bundle}}})):
        assert error.startswith("rkeConfig.registries.configs[m.example].caBundle: ")


@pytest.mark.parametrize("content", BYTES, ids=repr)
def test_invalid_snapshot_credentials(content: bytes) -> None:
    keys = ("accessKey", "secretKey", "defaultBucket", "defaultEndpointCA", "defaultSkipSSLVerify")
    inputs = cluster(etcd={"s3": {"cloudCredentialName": "s"}})
    referenced = {_secret("s"): Referenced({}, dict.fromkeys(keys, content))}
    for error in config_errors(replace(inputs, referenced=referenced)):
        assert error.startswith("rkeConfig.etcd.s3.cloudCredentialName: ")


@pytest.mark.parametrize("path", ["", "relative", "../up", "/ok", "C:\\x"])
@pytest.mark.parametrize("permissions", ["", "0644", "rw", "9999", "-1"])
def test_invalid_file_paths_and_permissions(path: str, permissions: str) -> None:
    item = {"key": "k", "path": path, "permissions": permissions}
    sources = [{"secret": {"name": "s", "items": [item]}}]
    referenced = {_secret("s"): Referenced({names.AUTHORIZED_CLUSTERS: "demo"}, {"k": b"\xff"})}
    errors = set(
        config_errors(replace(cluster(machineSelectorFiles=[{"fileSources": sources}]), referenced=referenced))
    )
    field = "rkeConfig.machineSelectorFiles[0].fileSources[0]: "
    assert all(each.startswith(field) for each in errors)
    assert bool(errors) is (path != "/ok" or permissions not in ("", "0644"))


def _secret(name: str) -> Reference:
    return Reference("Secret", "fleet-default", name)


@pytest.mark.parametrize("field", ["machineSelectorConfig", "machineSelectorFiles"])
def test_invalid_selectors(field: str) -> None:
    selector = {"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}
    errors = set(config_errors(cluster(**{field: [{"machineLabelSelector": selector}]})))
    assert len(errors) == 1
    assert errors.pop().startswith(f"{field}[0].machineLabelSelector.matchExpressions[0].operator: ")


def test_environment_variables_without_a_name_are_ignored() -> None:
    assert not list(config_errors(cluster(agentEnvVars=[{"value": "x"}, {"name": "A"}])))
