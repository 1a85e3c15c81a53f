"""Warnings about valid but questionable objects, with kube-apiserver's messages."""

from __future__ import annotations

from collections.abc import Iterator

from herder.engine.apiserver.builtin.strategies.checks import label_name
from herder.engine.meta import quantity
from herder.engine.meta.kinds import Object

_OLD_NODE_LABELS = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": 'deprecated since v1.17; use "topology.kubernetes.io/region" instead',
    "failure-domain.beta.kubernetes.io/zone": 'deprecated since v1.17; use "topology.kubernetes.io/zone" instead',
    "beta.kubernetes.io/instance-type": 'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead',
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
}
_SURPRISING = "which can result in surprising behavior; a DNS label is recommended"


def pod_name(obj: Object, used: str = "Pod names and hostnames") -> Iterator[str]:
    problems = label_name(obj["metadata"].get("name", ""))
    if problems:
        yield f"metadata.name: this is used in {used}, {_SURPRISING}: [{' '.join(problems)}]"


def pod_warnings(spec: Object, path: str) -> Iterator[str]:
    for key in spec.get("nodeSelector") or ():
        if key in _OLD_NODE_LABELS:
            yield f"{path}.nodeSelector[{key}]: {_OLD_NODE_LABELS[key]}"
    for position, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        if constraint.get("labelSelector") is None:
            at = f"{path}.topologySpreadConstraints[{position}].labelSelector"
            yield f"{at}: a null labelSelector results in matching no pod"
    for position, volume in enumerate(spec.get("volumes") or ()):
        if volume.get("gitRepo") is not None:
            yield f"{path}.volumes[{position}].gitRepo: deprecated in v1.11, and disabled by default in v1.33+"
    yield from _repeated(spec.get("hostAliases"), "ip", f"{path}.hostAliases")
    yield from _repeated(spec.get("imagePullSecrets"), "name", f"{path}.imagePullSecrets")
    for key in ("initContainers", "containers"):
        for position, container in enumerate(spec.get(key) or ()):
            yield from _container(container, f"{path}.{key}[{position}]")


def _repeated(items: list[Object] | None, key: str, path: str) -> Iterator[str]:
    seen: set[str] = set()
    for position, item in enumerate(items or ()):
        value = item.get(key, "")
        if value in seen:
            yield f'{path}[{position}].{key}: duplicate {key} "{value}"'
        seen.add(value)


def _container(container: Object, path: str) -> Iterator[str]:
    resources = container.get("resources") or {}
    for key in ("limits", "requests"):
        for name in ("memory", "ephemeral-storage"):
            yield from fractional_bytes((resources.get(key) or {}).get(name), f"{path}.resources.{key}[{name}]")
    seen: set[str] = set()
    for position, variable in enumerate(container.get("env") or ()):
        name = variable.get("name", "")
        if name in seen:
            yield (
                f'{path}.env[{position}]: hides previous definition of "{name}", which may be dropped when using apply'
            )
        seen.add(name)
    ports: dict[tuple[object, ...], int] = {}
    for position, port in enumerate(container.get("ports") or ()):
        key_of = tuple(port.get(key) for key in ("containerPort", "protocol", "hostPort", "hostIP"))
        if key_of in ports:
            first = f"{path}.ports[{ports[key_of]}]"
            yield f"{path}.ports[{position}]: duplicate port definition with {first}"
        else:
            ports[key_of] = position


def fractional_bytes(value: str | None, path: str) -> Iterator[str]:
    if value is not None:
        amount = quantity.parse(value)
        try:
            whole = amount.compare(quantity.parse(str(amount.value()))) == 0
        except quantity.QuantityError:  # hundreds of digits: too large to have a fraction
            whole = True
        if not whole:
            yield f'{path}: fractional byte value "{value}" is invalid, must be an integer'


def service_warnings(obj: Object) -> Iterator[str]:
    spec = obj.get("spec") or {}
    if spec.get("externalIPs"):
        yield "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
    if spec.get("externalName") and spec.get("type") != "ExternalName":
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'
    if spec.get("clusterIP") == "None" and spec.get("sessionAffinity") not in {None, "", "None"}:
        yield "spec.SessionAffinity is ignored for headless services"
    if spec.get("trafficDistribution") == "PreferClose":
        yield 'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'


def ingress_warnings(obj: Object) -> Iterator[str]:
    if "kubernetes.io/ingress.class" in (obj["metadata"].get("annotations") or {}):
        yield "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"
