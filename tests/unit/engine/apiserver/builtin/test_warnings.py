"""Warnings have kube-apiserver's messages."""

from __future__ import annotations

from typing import Any

import pytest

from herder.engine.apiserver.builtin import resources
from tests.unit.engine.apiserver.builtin.driving import read, resource_of
from tests.unit.engine.apiserver.builtin.refusals import DEPLOYMENT, INGRESS, POD, _service, _with

C0 = "spec/containers/0"
_NAME = (
    "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is"
)


@pytest.mark.parametrize(
    ("obj", "warning"),
    [
        (POD, ""),
        (
            _with(POD, f"{C0}/env", [{"name": "A"}, {"name": "A"}]),
            'spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply',
        ),
        (
            _with(POD, f"{C0}/ports", [{"containerPort": 1}, {"containerPort": 1}]),
            "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
        ),
        (
            _with(POD, "spec/nodeSelector", {"beta.kubernetes.io/os": "linux"}),
            'spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead',
        ),
        (
            _with(POD, f"{C0}/resources", {"requests": {"memory": "100m"}}),
            "spec.containers[0].resources.requests[memory]: "
            'fractional byte value "100m" is invalid, must be an integer',
        ),
        (
            _with(POD, "spec/imagePullSecrets", [{"name": "a"}, {"name": "a"}]),
            'spec.imagePullSecrets[1].name: duplicate name "a"',
        ),
        (_with(DEPLOYMENT, "metadata/name", "a.b"), f"{_NAME} recommended: [must not contain dots]"),
        (
            _service(ports=[{"port": 1}], clusterIP="None", externalName="x"),
            'spec.externalName is ignored when spec.type is not "ExternalName"',
        ),
        (
            _with(INGRESS, "metadata/annotations", {"kubernetes.io/ingress.class": "x"}),
            "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead",
        ),
    ],
)
def test_warnings_match_kube_apiserver(obj: dict[str, Any], warning: str) -> None:
    found_warnings = list(resource_of(obj).strategy.warnings(read(obj), None))
    assert found_warnings == ([warning] if warning else [])


def test_deprecated_kinds_warn_on_each_use() -> None:
    (endpoints,) = [item for item in resources() if item.plural == "endpoints"]
    expected = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
    assert endpoints.versions["v1"].deprecation == expected
