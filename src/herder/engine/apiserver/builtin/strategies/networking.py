"""Strategies of ingresses, network policies, endpoints and endpoint slices."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from herder.engine.apiserver.builtin.strategies import checks
from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import Errors, checked, one_of, unchanged
from herder.engine.apiserver.builtin.strategies.warnings import ingress_warnings
from herder.engine.apiserver.builtin.strategies.workload.containers import PROTOCOLS
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta import names
from herder.engine.meta.errors import duplicate, forbidden_field, invalid_value, not_supported, required, too_many
from herder.engine.meta.kinds import Object

_PATH_TYPES = ("Exact", "ImplementationSpecific", "Prefix")
_BAD_SEQUENCES = ("//", "/./", "/../", "%2f", "%2F")
_BAD_WILDCARD = (
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of "
    "lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', "
    r"regex used for validation is '\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_BAD_ENDS = ("/..", "/.")


class IngressStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True, status="networking.v1.IngressStatus")

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj.get("spec") or {}
        if not spec.get("rules") and spec.get("defaultBackend") is None:
            yield invalid_value("spec", spec.get("rules"), "either `defaultBackend` or `rules` must be specified")
        if spec.get("defaultBackend") is not None:
            yield from _backend(spec["defaultBackend"], "spec.defaultBackend")
        for position, rule in enumerate(spec.get("rules") or ()):
            at = f"spec.rules[{position}]"
            yield from _host(rule.get("host", ""), f"{at}.host")
            http = rule.get("http")
            if http is not None:
                yield from _http(http, f"{at}.http")
        for position, tls in enumerate(spec.get("tls") or ()):
            for index, host in enumerate(tls.get("hosts") or ()):
                yield from _host(host, f"spec.tls[{position}].hosts[{index}]")
            if tls.get("secretName"):
                at = f"spec.tls[{position}].secretName"
                yield from checked(tls["secretName"], at, names.dns1123_subdomain)
        if spec.get("ingressClassName") is not None:
            yield from checked(spec["ingressClassName"], "spec.ingressClassName", names.dns1123_subdomain)

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        return ingress_warnings(obj)


def _host(host: str, path: str) -> Errors:
    if not host:
        return
    try:
        ipaddress.ip_address(host)
        yield invalid_value(path, host, "must be a DNS name, not an IP address")
    except ValueError:
        pass
    if "*" in host:
        if not host.startswith("*.") or names.dns1123_subdomain(host[2:]):
            yield invalid_value(path, host, _BAD_WILDCARD)
    else:
        yield from checked(host, path, names.dns1123_subdomain)


def _http(http: Object, path: str) -> Errors:
    if not http.get("paths"):
        yield required(f"{path}.paths")
    for position, entry in enumerate(http.get("paths") or ()):
        at, kind, url = f"{path}.paths[{position}]", entry.get("pathType"), entry.get("path", "")
        if kind is None:
            yield required(f"{at}.pathType", "pathType must be specified")
            continue
        if kind not in _PATH_TYPES:
            yield not_supported(f"{at}.pathType", kind, _PATH_TYPES)
        elif (url or kind != "ImplementationSpecific") and not url.startswith("/"):
            yield invalid_value(f"{at}.path", url, "must be an absolute path")
        if kind in {"Exact", "Prefix"} and url:
            for bad in _BAD_SEQUENCES:
                if bad in url:
                    yield invalid_value(f"{at}.path", url, f"must not contain '{bad}'")
            for bad in _BAD_ENDS:
                if url.endswith(bad):
                    yield invalid_value(f"{at}.path", url, f"cannot end with '{bad}'")
        yield from _backend(entry.get("backend") or {}, f"{at}.backend")


def _backend(backend: Object, path: str) -> Errors:
    service, resource = backend.get("service"), backend.get("resource")
    if service is not None and resource is not None:
        yield invalid_value(path, "", "cannot set both resource and service backends")
    elif resource is not None:
        for key in ("kind", "name"):
            if not resource.get(key):
                yield required(f"{path}.resource.{key}")
    elif service is not None:
        if not service.get("name"):
            yield required(f"{path}.service.name")
        else:
            yield from checked(service["name"], f"{path}.service.name", names.dns1123_label)
        port = service.get("port") or {}
        if port.get("name") and port.get("number"):
            yield invalid_value(path, "", "cannot set both port name & port number")
        elif port.get("name"):
            yield from checked(port["name"], f"{path}.service.port.name", checks.port_name)
        elif port.get("number"):
            yield from checks.port_number(port["number"], f"{path}.service.port.number")
        else:
            yield required(path, "port name or number is required")
    else:
        yield invalid_value(path, "", "resource or service backend is required")


class IngressClassStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True)

    def problems(self, obj: Object, context: Context) -> Errors:
        controller = (obj.get("spec") or {}).get("controller", "")
        if not controller:
            yield required("spec.controller")
        elif "/" not in controller:
            problem = 'must be a domain-prefixed path (such as "acme.io/foo")'
            yield invalid_value("spec.controller", controller, problem)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        new, before = obj.get("spec") or {}, old.get("spec") or {}
        yield from unchanged(new.get("controller", ""), before.get("controller", ""), "spec.controller")


class NetworkPolicyStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True)

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj.get("spec") or {}
        yield from checks.selector(spec.get("podSelector"), "spec.podSelector")
        for key, peers in (("ingress", "from"), ("egress", "to")):
            for position, rule in enumerate(spec.get(key) or ()):
                at = f"spec.{key}[{position}]"
                for index, port in enumerate(rule.get("ports") or ()):
                    yield from _policy_port(port, f"{at}.ports[{index}]")
                for index, peer in enumerate(rule.get(peers) or ()):
                    yield from _policy_peer(peer, f"{at}.{peers}[{index}]")
        kinds = spec.get("policyTypes") or []
        if len(kinds) > 2:
            yield invalid_value("spec.policyTypes", kinds, "may not specify more than two policyTypes")
            return
        for position, kind in enumerate(kinds):
            if kind not in {"Ingress", "Egress"}:
                yield not_supported(f"spec.policyTypes[{position}]", kind, ["Ingress", "Egress"])


def _policy_port(port: Object, path: str) -> Errors:
    if port.get("protocol") not in {None, *PROTOCOLS}:
        yield not_supported(f"{path}.protocol", port["protocol"], ["TCP", "UDP", "SCTP"])
    number, end = port.get("port"), port.get("endPort")
    if number is not None:
        yield from checks.port_number_or_name(number, f"{path}.port")
    if end is None:
        return
    if number is None:
        yield invalid_value(f"{path}.endPort", end, "may not be specified when `port` is not specified")
    elif isinstance(number, str):
        yield invalid_value(f"{path}.endPort", end, "may not be specified when `port` is non-numeric")
    else:
        if end < number:
            yield invalid_value(f"{path}.endPort", number, "must be greater than or equal to `port`")
        yield from checks.port_number(end, f"{path}.endPort")


def _policy_peer(peer: Object, path: str) -> Errors:
    block, message = peer.get("ipBlock"), 0
    for key in ("podSelector", "namespaceSelector"):
        if peer.get(key) is not None:
            message += 1
            yield from checks.selector(peer[key], f"{path}.{key}")
    if block is not None:
        message += 1
        if not block.get("cidr"):
            yield required(f"{path}.ipBlock.cidr")
        else:
            yield from checks.cidr(block["cidr"], f"{path}.ipBlock.cidr")
    if not message:
        yield required(path, "must specify a peer")
    elif message > 1 and block is not None:
        yield forbidden_field(path, "may not specify both ipBlock and another peer")


class EndpointsStrategy(BuiltinStrategy):
    def problems(self, obj: Object, context: Context) -> Errors:
        for position, subset in enumerate(obj.get("subsets") or ()):
            at = f"subsets[{position}]"
            if not subset.get("addresses") and not subset.get("notReadyAddresses"):
                yield required(at, "must specify `addresses` or `notReadyAddresses`")
            for key in ("addresses", "notReadyAddresses"):
                for index, address in enumerate(subset.get(key) or ()):
                    yield from _endpoint_address(address.get("ip", ""), f"{at}.{key}[{index}].ip")
            ports = subset.get("ports") or []
            for index, port in enumerate(ports):
                where = f"{at}.ports[{index}]"
                if port.get("name"):
                    yield from checked(port["name"], f"{where}.name", names.dns1123_label)
                elif len(ports) > 1:
                    yield required(f"{where}.name")
                yield from checks.port_number(port.get("port"), f"{where}.port")
                yield from one_of(port.get("protocol"), f"{where}.protocol", PROTOCOLS)


def _endpoint_address(value: str, path: str) -> Errors:
    problems = list(checks.ip_address(value, path))
    yield from problems
    if problems:
        yield invalid_value(path, value, "must be a valid IP address")
        return
    address = ipaddress.ip_address(value)
    if address.is_unspecified:
        yield invalid_value(path, value, f"may not be unspecified ({value})")
    if address.is_loopback:
        yield invalid_value(path, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
    if address.is_link_local:
        yield invalid_value(path, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    if address.is_multicast:
        yield invalid_value(path, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")


class EndpointSliceStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True)

    def problems(self, obj: Object, context: Context) -> Errors:
        kind = obj.get("addressType", "")
        yield from one_of(kind, "addressType", ("FQDN", "IPv4", "IPv6"))
        endpoints = obj.get("endpoints") or []
        if len(endpoints) > 1000:
            yield too_many("endpoints", len(endpoints), 1000)
            return
        for position, endpoint in enumerate(endpoints):
            yield from _slice_addresses(endpoint.get("addresses") or [], kind, f"endpoints[{position}].addresses")
            if endpoint.get("hostname") is not None:
                yield from checked(endpoint["hostname"], f"endpoints[{position}].hostname", names.dns1123_label)
        seen: set[str] = set()
        for position, port in enumerate(obj.get("ports") or ()):
            at, name = f"ports[{position}]", port.get("name", "")
            if name:
                yield from checked(name, f"{at}.name", names.dns1123_label)
            if name in seen:
                yield duplicate(f"{at}.name", name)
            seen.add(name)
            yield from one_of(port.get("protocol"), f"{at}.protocol", PROTOCOLS)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        yield from unchanged(obj.get("addressType"), old.get("addressType"), "addressType")


def _slice_addresses(addresses: list[str], kind: str, path: str) -> Errors:
    if not addresses:
        yield required(path, "must contain at least 1 address")
    elif len(addresses) > 100:
        yield too_many(path, len(addresses), 100)
    for position, address in enumerate(addresses):
        at = f"{path}[{position}]"
        if kind == "FQDN":
            yield from checked(address, at, names.dns1123_subdomain)
            continue
        problems = list(checks.ip_address(address, at))
        if problems:
            yield from problems
        elif kind in {"IPv4", "IPv6"} and f"IPv{ipaddress.ip_address(address).version}" != kind:
            yield invalid_value(path, address, f"must be an {kind} address")
