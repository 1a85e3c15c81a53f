"""Printers of services, endpoints, ingresses and network policies."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from herder.engine.apiserver.tables.cells import (
    NONE,
    UNKNOWN,
    annotation,
    columns,
    join_limited,
    labels_text,
    name_of,
    selector_text,
    spec_of,
    status_of,
)
from herder.engine.apiserver.tables.duration import age
from herder.engine.apiserver.tables.printers import Printer, Printers
from herder.engine.meta.kinds import GroupKind, GroupResource, Object


def _service(obj: Object, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    addresses = spec.get("clusterIPs") or ()
    return [
        name_of(obj),
        spec.get("type", ""),
        addresses[0] if addresses else NONE,
        _external_address(obj),
        ",".join(_port(port) for port in spec.get("ports") or ()) or NONE,
        age(obj, now),
        labels_text(spec.get("selector")),
    ]


def _external_address(service: Object) -> str:
    spec = spec_of(service)
    external = list(spec.get("externalIPs") or ())
    match spec.get("type"):
        case "ClusterIP" | "NodePort":
            return ",".join(external) or NONE
        case "LoadBalancer":
            balanced = _load_balancer(service)
            return ",".join(([balanced] if balanced else []) + external) or "<pending>"
        case "ExternalName":
            return str(spec.get("externalName", ""))
        case _:
            return UNKNOWN


def _load_balancer(obj: Object) -> str:
    ingresses = (status_of(obj).get("loadBalancer") or {}).get("ingress") or ()
    addresses = {each.get("ip") or each.get("hostname") or "" for each in ingresses}
    return ",".join(sorted(address for address in addresses if address))


def _port(port: Object) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port', 0)}{node_port}/{port.get('protocol', '')}"


def _endpoints(obj: Object, now: datetime) -> list[Any]:
    listed: list[str] = []
    for subset in obj.get("subsets") or ():
        addresses = [each.get("ip", "") for each in subset.get("addresses") or ()]
        ports = subset.get("ports") or ()
        if not ports:
            listed += addresses
        for port in ports:
            listed += [_host_port(address, port.get("port", 0)) for address in addresses]
    cell = join_limited(listed, empty="") if obj.get("subsets") else NONE
    return [name_of(obj), cell, age(obj, now)]


def _host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _endpoint_slice(obj: Object, now: datetime) -> list[Any]:
    ports = [_slice_port(port) for port in obj.get("ports") or ()]
    addresses = [address for each in obj.get("endpoints") or () for address in each.get("addresses") or ()]
    return [name_of(obj), obj.get("addressType", ""), join_limited(ports), join_limited(addresses), age(obj, now)]


def _slice_port(port: Object) -> str:
    if port.get("port") is not None:
        return str(port["port"])
    return "*" if port.get("name") is None else str(port["name"])


def _ingress(obj: Object, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    return [
        name_of(obj),
        NONE if spec.get("ingressClassName") is None else spec["ingressClassName"],
        _hosts(spec.get("rules") or []),
        _load_balancer(obj),
        "80, 443" if spec.get("tls") else "80",
        age(obj, now),
    ]


def _hosts(rules: list[Object]) -> str:
    listed: list[str] = []
    more = False
    for rule in rules:
        more = more or len(listed) == 3
        if not more and rule.get("host"):
            listed.append(rule["host"])
    text = ",".join(listed) or "*"
    return f"{text} + {len(rules) - 3} more..." if more else text


def _ingress_class(obj: Object, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    is_default = annotation(obj, "ingressclass.kubernetes.io/is-default-class") == "true"
    parameters = spec.get("parameters")
    message = NONE
    if parameters:
        group = f".{parameters['apiGroup']}" if parameters.get("apiGroup") is not None else ""
        message = f"{parameters.get('kind', '')}{group}/{parameters.get('name', '')}"
    name = name_of(obj) + (" (default)" if is_default else "")
    return [name, spec.get("controller", ""), message, age(obj, now)]


def _network_policy(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), selector_text(spec_of(obj).get("podSelector") or {}), age(obj, now)]


def _service_cidr(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), ",".join(spec_of(obj).get("cidrs") or ()), age(obj, now)]


def _ip_address(obj: Object, now: datetime) -> list[Any]:
    parent = spec_of(obj).get("parentRef")
    message = NONE
    if parent:
        resource = str(GroupResource(parent.get("group", ""), parent.get("resource", ""))).lower()
        message = "/".join(part for part in (resource, parent.get("namespace"), parent.get("name", "")) if part)
    return [name_of(obj), message]


PRINTERS: Printers = {
    GroupKind("", "Service"): Printer(
        columns("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "+Selector"), _service
    ),
    GroupKind("", "Endpoints"): Printer(columns("Name", "Endpoints", "Age"), _endpoints),
    GroupKind("discovery.k8s.io", "EndpointSlice"): Printer(
        columns("Name", "AddressType", "Ports", "Endpoints", "Age"), _endpoint_slice
    ),
    GroupKind("networking.k8s.io", "Ingress"): Printer(
        columns("Name", "Class", "Hosts", "Address", "Ports", "Age"), _ingress
    ),
    GroupKind("networking.k8s.io", "IngressClass"): Printer(
        columns("Name", "Controller", "Parameters", "Age"), _ingress_class
    ),
    GroupKind("networking.k8s.io", "NetworkPolicy"): Printer(columns("Name", "Pod-Selector", "Age"), _network_policy),
    GroupKind("networking.k8s.io", "ServiceCIDR"): Printer(columns("Name", "CIDRs", "Age"), _service_cidr),
    GroupKind("networking.k8s.io", "IPAddress"): Printer(columns("Name", "ParentRef"), _ip_address),
}
