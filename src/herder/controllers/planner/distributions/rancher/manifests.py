"""Manifests that servers deploy, and the webhook configuration of the authorized cluster endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from herder.api.management.manifest import as_yaml, manifest
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.names import CLUSTER_SPEC
from herder.api.rke.node.plan import File, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.rancher.runtime import Runtime, loopback
from herder.engine.schema.gotext import to_json

SPEC_KEY = "provisioning-cluster-spec"
_VSPHERE_CSI = "rancher-vsphere-csi"


def manifests(
    cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime, config: Mapping[str, Any]
) -> Iterator[File]:
    directory = f"{runtime.data(cluster)}/server/manifests/rancher"
    if machine.roles.control_plane:
        agent = as_yaml(manifest(cluster.agent)) if cluster.agent else ""
        yield file(f"{directory}/cluster-agent.yaml", agent, dynamic=True, minor=True)
    if machine.roles.control_plane and not cluster.is_pre_bootstrap:
        if spec := cluster.annotations.get(CLUSTER_SPEC):
            name = f"{runtime.name}-etcd-snapshot-extra-metadata"
            yield file(f"{directory}/{name}.yaml", _spec_config_map(name, spec), dynamic=True, minor=True)
        yield file(f"{directory}/addons.yaml", cluster.spec.get("additionalManifest") or "", dynamic=True)
    if machine.roles.is_server:
        yield file(f"{directory}/managed-chart-config.yaml", _charts(cluster, config), dynamic=True)


def authentication(cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime) -> Iterator[File]:
    if has_authentication(cluster, machine):
        yield file(authentication_file(cluster, runtime), _webhook(loopback(cluster)))


def has_authentication(cluster: ClusterInputs, machine: MachineInputs) -> bool:
    enabled = (cluster.spec.get("localClusterAuthEndpoint") or {}).get("enabled")
    return bool(enabled) and machine.roles.is_server


def authentication_file(cluster: ClusterInputs, runtime: Runtime) -> str:
    return f"{runtime.data(cluster)}/kube-api-authn-webhook.yaml"


def _spec_config_map(name: str, spec: str) -> str:
    """ConfigMap with the cluster's spec. Snapshots contain it, so that a restore can recover the spec."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "kube-system"},
        "data": {SPEC_KEY: spec},
    }
    return yaml.safe_dump(config_map, sort_keys=False)


def _charts(cluster: ClusterInputs, config: Mapping[str, Any]) -> str:
    """HelmChartConfigs for the bundled charts; each gets the cluster's ID."""
    values: dict[str, Any] = dict(cluster.spec.get("chartValues") or {})
    if config.get("cloud-provider-name") == "rancher-vsphere":
        values.setdefault(_VSPHERE_CSI, {})
    charts = [_chart(name, _object(values[name], name), cluster) for name in sorted(values)]
    return yaml.safe_dump_all(charts, sort_keys=False, explicit_start=True) if charts else ""


def _chart(name: str, values: Mapping[str, Any], cluster: ClusterInputs) -> dict[str, Any]:
    shared = _object(values.get("global"), name, "global")
    cattle = _object(shared.get("cattle"), name, "global", "cattle")
    status = {**values, "global": {**shared, "cattle": {**cattle, "clusterId": cluster.management_name}}}
    return {
        "apiVersion": "helm.cattle.io/v1",
        "kind": "HelmChartConfig",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"valuesContent": to_json(status)},
    }


def _object(value: Any, *path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"rkeConfig.chartValues.{'.'.join(path)}: must be an object, as a chart's values are")
    return value


def _webhook(address: str) -> str:
    server = {"insecure-skip-tls-verify": True, "server": f"http://{address}:6440/v1/authenticate"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "Default", "cluster": server}],
        "users": [{"name": "Default", "user": {"insecure-skip-tls-verify": True}}],
        "contexts": [{"name": "webhook", "context": {"user": "Default", "cluster": "Default"}}],
        "current-context": "webhook",
    }
    return yaml.safe_dump(config, sort_keys=False)
