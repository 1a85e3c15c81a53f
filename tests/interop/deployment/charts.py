"""Values of our chart, and helm on an engine."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from herder.api.capi.inventory import NAMESPACE
from tests.interop.programs import run
from tests.support.engines import Engine
from tests.support.manager.chart_stand_in import Values
from tools.deploy_manifests import CHART

HOST = "herder.example.com"
PASSWORD = "correct horse battery"
RELEASE = "herder"
REQUIRED: Values = {"hostname": HOST, "image": {"repository": "herder.invalid/herder", "tag": "none"}}
CLASSES = {"ingressClassName": "nginx", "extraAnnotations": {"cert-manager.io/cluster-issuer": "letsencrypt"}}
OF_SECRET = {"ingress": {"enabled": True, "ingressClassName": "nginx", "tls": {"source": "secret"}}}
DIGEST = "sha256:" + "0123456789abcdef" * 4
ALL_VALUES = REQUIRED | {
    "replicas": 3,
    "bootstrapPassword": PASSWORD,
    "systemDefaultRegistry": "registry.example.com:5000/mirror",
    "privateCA": True,
    "ingress": {"enabled": True, **CLASSES, "tls": {"source": "secret", "secretName": "tls-own"}},
    "service": {"type": "LoadBalancer", "annotations": {"example.com/a": "b"}},
    "extraArgs": ["--capi-core=external"],
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com"}],
    "imagePullSecrets": [{"name": "pull"}],
    "tolerations": [{"operator": "Exists"}],
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "priorityClassName": "system-cluster-critical",
    "serviceMonitor": {"enabled": True},
}
VALUES: dict[str, Values] = {
    "required": REQUIRED,
    "all": ALL_VALUES,
    "three replicas": REQUIRED | {"replicas": 3},
    "image digest": {"hostname": HOST, "image": {"repository": "herder.invalid/herder", "digest": DIGEST}},
    "ingress that passes TLS through": REQUIRED | {"ingress": {"enabled": True, **CLASSES}},
    "ingress with a public certificate": REQUIRED | OF_SECRET,
    "ingress with a private CA": REQUIRED | OF_SECRET | {"privateCA": True},
    "registry": REQUIRED | {"systemDefaultRegistry": "registry.example.com"},
    "password": REQUIRED | {"bootstrapPassword": PASSWORD},
    "monitored": REQUIRED | {"serviceMonitor": {"enabled": True}},
    "no policies": REQUIRED | {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
}

PROVIDER = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pasture-provider, labels: {cluster.x-k8s.io/aggregate-to-manager: "true"}}
rules: [{apiGroups: [pasture.example.com], resources: ["*"], verbs: ["*"]}]
"""
"""A role that a provider of Cluster API installs."""

SERVICE_MONITOR = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: ServiceMonitor, plural: servicemonitors, singular: servicemonitor}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            spec:
              type: object
              required: [endpoints, selector]
              properties:
                endpoints:
                  type: array
                  items: {type: object, properties: {port: {type: string}, honorLabels: {type: boolean}}}
                selector:
                  type: object
                  properties: {matchLabels: {type: object, additionalProperties: {type: string}}}
"""
"""The fields of the Prometheus operator's kind that the chart sets."""


@dataclass(frozen=True)
class Helm:
    """helm as its user runs it, in the namespace of the manager."""

    engine: Engine
    home: Path

    def __call__(
        self, *arguments: str, check: bool = True, namespace: str = NAMESPACE
    ) -> subprocess.CompletedProcess[str]:
        return run(self.engine, "helm", *arguments, f"--namespace={namespace}", home=self.home, check=check)

    def on_chart(self, command: str, values: Values, *flags: str, check: bool = True) -> str:
        """Run a command on the chart. Returns what helm prints, or its error if it may fail."""
        file = self.home / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        release = () if command == "lint" else (RELEASE,)
        done = self(command, *release, str(CHART), f"--values={file}", *flags, check=check)
        assert check or done.returncode != 0, f"{command}: succeeded\n{done.stdout}"
        return done.stdout if check else done.stderr

    def rendered(self, values: Values, *flags: str) -> list[Any]:
        return [each for each in yaml.safe_load_all(self.on_chart("template", values, *flags)) if each]


def is_test(obj: Any) -> bool:
    return (obj["metadata"].get("annotations") or {}).get("helm.sh/hook") == "test"


def name_of(obj: Any) -> tuple[str, str, str]:
    meta = obj["metadata"]
    return obj["kind"], meta.get("namespace", ""), meta["name"]
