"""Strategy of Services: allocates and keeps cluster IPs and node ports."""

from __future__ import annotations

import copy
import ipaddress
from collections.abc import Callable, Iterable, Iterator

from herder.engine.apiserver.builtin.strategies import checks
from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import Errors, checked, label_name, one_of
from herder.engine.apiserver.builtin.strategies.warnings import service_warnings
from herder.engine.apiserver.builtin.strategies.workload.containers import PROTOCOLS
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, duplicate, forbidden_field, invalid_value, not_supported, required
from herder.engine.meta.kinds import Object

CLUSTER_RANGE = ipaddress.ip_network("10.96.0.0/12")
NODE_PORTS = range(30000, 32768)
_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")


class ServiceStrategy(BuiltinStrategy):
    """Allocates cluster IPs at random, without bookkeeping.

    A collision is as unlikely as the range is large, and harmless because no proxy routes these addresses.
    """

    name_check = staticmethod(label_name)

    def __init__(self) -> None:
        super().__init__(status="core.v1.ServiceStatus")

    def prepare_create(self, obj: Object, context: Context) -> None:
        super().prepare_create(obj, context)
        spec = obj["spec"]
        _align_cluster_ips(spec)
        _default_ip_families(spec)
        _allocate(spec, context.entropy)

    def prepare_update(self, obj: Object, old: Object, context: Context) -> None:
        super().prepare_update(obj, old, context)
        spec, before = obj["spec"], old["spec"]
        if spec.get("type") == "ExternalName":
            if before.get("type") != "ExternalName":
                _drop_addresses(spec, before)
            return
        if before.get("type") != "ExternalName":
            _keep_allocated(spec, before)
        if spec.get("clusterIP") != before.get("clusterIP") and spec.get("clusterIPs") == before.get("clusterIPs"):
            spec.pop("clusterIPs", None)  # a client that changes only clusterIP means both fields
        _align_cluster_ips(spec)
        _default_ip_families(spec)
        _drop_stale(spec, before)
        _allocate(spec, context.entropy)

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj["spec"]
        headless, kind = spec.get("clusterIP") == "None", spec.get("type")
        if not spec.get("ports") and not headless and kind != "ExternalName":
            yield required("spec.ports")
        if headless and kind in {"LoadBalancer", "NodePort"}:
            yield invalid_value("spec.clusterIPs[0]", "None", f"may not be set to 'None' for {kind} services")
        if kind == "ExternalName":
            yield from _external_name(spec)
        yield from _ports(spec)
        yield from checks.labels(spec.get("selector"), "spec.selector")
        yield from one_of(spec.get("sessionAffinity"), "spec.sessionAffinity", ("ClientIP", "None"))
        yield from _affinity_timeout(spec)
        yield from _cluster_ips(spec)
        for position, address in enumerate(spec.get("externalIPs") or ()):
            yield from checks.ip_address(address, f"spec.externalIPs[{position}]")
        yield from one_of(kind, "spec.type", _TYPES)
        yield from _node_ports(spec)
        yield from _traffic_policies(spec)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        spec, before = obj["spec"], old["spec"]
        if "ExternalName" in {spec.get("type"), before.get("type")}:
            return
        wanted, had = spec.get("clusterIPs") or [], before.get("clusterIPs") or []
        if had and not wanted:
            yield invalid_value("spec.clusterIPs[0]", wanted, "primary clusterIP can not be unset")
        elif had and wanted[0] != had[0]:
            yield invalid_value("spec.clusterIPs[0]", wanted, "may not change once set")

    def fields(self, obj: Object) -> dict[str, str]:
        spec = obj.get("spec", {})
        return {"spec.clusterIP": spec.get("clusterIP", ""), "spec.type": spec.get("type", "")}

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        return service_warnings(obj)


# --- allocation -------------------------------------------------------------------------------------------------


def _align_cluster_ips(spec: Object) -> None:
    """Keep `clusterIP` equal to the first of `clusterIPs`; a client may set either."""
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    elif spec.get("clusterIPs") and not spec.get("clusterIP"):
        spec["clusterIP"] = spec["clusterIPs"][0]


def _default_ip_families(spec: Object) -> None:
    if spec.get("type") == "ExternalName":
        return
    headless_without_selector = spec.get("clusterIP") == "None" and not spec.get("selector")
    if not spec.get("ipFamilyPolicy"):
        spec["ipFamilyPolicy"] = "RequireDualStack" if headless_without_selector else "SingleStack"
    if not spec.get("ipFamilies"):
        spec["ipFamilies"] = ["IPv4", "IPv6"] if headless_without_selector else ["IPv4"]


def _allocate(spec: Object, entropy: Callable[[int], bytes]) -> None:
    if spec.get("type") == "ExternalName":
        return
    if not spec.get("clusterIP"):
        spec["clusterIP"] = _random_address(entropy)
        spec["clusterIPs"] = [spec["clusterIP"]]
    if spec.get("type") == "NodePort" or (
        spec.get("type") == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False
    ):
        taken = {port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")}
        for port in spec.get("ports") or ():
            if not port.get("nodePort"):
                port["nodePort"] = _random_port(entropy, taken)
                taken.add(port["nodePort"])
    if _needs_health_check(spec) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = _random_port(entropy, set())


def _needs_health_check(spec: Object) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def _random_address(entropy: Callable[[int], bytes]) -> str:
    """Return a random cluster IP, except one of the first 256, which users assign statically."""
    size, reserved = CLUSTER_RANGE.num_addresses, 256
    offset = reserved + int.from_bytes(entropy(8), "big") % (size - reserved - 1)
    return str(CLUSTER_RANGE.network_address + offset)


def _random_port(entropy: Callable[[int], bytes], taken: set[int]) -> int:
    start = int.from_bytes(entropy(4), "big") % len(NODE_PORTS)
    return next(port for port in _ports_from(start) if port not in taken)


def _ports_from(start: int) -> Iterator[int]:
    yield from NODE_PORTS[start:]
    yield from NODE_PORTS[:start]


def _drop_addresses(spec: Object, before: Object) -> None:
    """Remove cluster IPs and node ports that were carried over from the old object: an ExternalName has none."""
    for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"):
        if spec.get(key) == before.get(key):
            spec.pop(key, None)
    for port in spec.get("ports") or ():
        port.pop("nodePort", None)


def _keep_allocated(spec: Object, before: Object) -> None:
    """Keep allocated values that an update omits."""
    if not spec.get("clusterIP") and not spec.get("clusterIPs"):
        for key in ("clusterIP", "clusterIPs"):
            if before.get(key):
                spec[key] = copy.deepcopy(before[key])
    for key in ("ipFamilies", "ipFamilyPolicy"):
        if not spec.get(key) and before.get(key):
            spec[key] = copy.deepcopy(before[key])
    given = {(port.get("protocol"), port.get("port")): port.get("nodePort") for port in before.get("ports") or ()}
    if spec.get("type") in {"NodePort", "LoadBalancer"} and before.get("type") in {"NodePort", "LoadBalancer"}:
        for port in spec.get("ports") or ():
            kept = given.get((port.get("protocol"), port.get("port")))
            if not port.get("nodePort") and kept:
                port["nodePort"] = kept
        if not spec.get("healthCheckNodePort") and before.get("healthCheckNodePort"):
            spec["healthCheckNodePort"] = before["healthCheckNodePort"]


def _drop_stale(spec: Object, before: Object) -> None:
    """Remove values that the new type does not use, unless the client changed them."""
    if spec.get("type") == "ClusterIP" and before.get("type") in {"NodePort", "LoadBalancer"}:
        old_ports = {port.get("nodePort") for port in before.get("ports") or ()}
        for port in spec.get("ports") or ():
            if port.get("nodePort") in old_ports:
                port.pop("nodePort", None)
        if not spec.get("externalIPs") and spec.get("externalTrafficPolicy") == before.get("externalTrafficPolicy"):
            spec.pop("externalTrafficPolicy", None)
    if spec.get("type") != "LoadBalancer" and before.get("type") == "LoadBalancer":
        for key in ("healthCheckNodePort", "allocateLoadBalancerNodePorts", "loadBalancerClass"):
            if spec.get(key) == before.get(key):
                spec.pop(key, None)


# --- validation -------------------------------------------------------------------------------------------------


def _external_name(spec: Object) -> Errors:
    for key in ("clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if spec.get(key):
            yield forbidden_field(f"spec.{key}", "may not be set for ExternalName services")
    name = spec.get("externalName", "").removesuffix(".")
    if name:
        yield from checked(name, "spec.externalName", names.dns1123_subdomain)
    else:
        yield required("spec.externalName")


def _ports(spec: Object) -> Errors:
    ports, seen = spec.get("ports") or [], set()
    for position, port in enumerate(ports):
        at, name = f"spec.ports[{position}]", port.get("name")
        if not name:
            if len(ports) > 1:
                yield required(f"{at}.name")
        else:
            yield from checked(name, f"{at}.name", names.dns1123_label)
            if name in seen:
                yield duplicate(f"{at}.name", name)
            seen.add(name)
        yield from checks.port_number(port.get("port"), f"{at}.port")
        yield from one_of(port.get("protocol"), f"{at}.protocol", PROTOCOLS)
        yield from checks.port_number_or_name(port.get("targetPort"), f"{at}.targetPort")
        if port.get("appProtocol") is not None:
            yield from checked(port["appProtocol"], f"{at}.appProtocol", names.qualified_name)


def _affinity_timeout(spec: Object) -> Errors:
    seconds = ((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get("timeoutSeconds")
    if spec.get("sessionAffinity") == "ClientIP" and seconds is not None and not 0 < seconds <= 86400:
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        yield invalid_value(path, seconds, "must be greater than 0 and less than 86400")


def _cluster_ips(spec: Object) -> Errors:
    if spec.get("type") == "ExternalName":
        return
    primary, every = spec.get("clusterIP"), spec.get("clusterIPs") or []
    if primary and every and every[0] != primary:
        yield invalid_value("spec.clusterIPs", every, "first value must match `clusterIP`")
    for position, family in enumerate(spec.get("ipFamilies") or ()):
        if family not in {"IPv4", "IPv6"}:
            yield not_supported(f"spec.ipFamilies[{position}]", family, ["IPv4", "IPv6"])
    policy, policies = spec.get("ipFamilyPolicy"), ("PreferDualStack", "RequireDualStack", "SingleStack")
    if policy and policy not in policies:
        yield not_supported("spec.ipFamilyPolicy", policy, policies)
    for position, address in enumerate(every):
        if address == "None" and position == 0:
            if len(every) > 1:
                yield invalid_value("spec.clusterIPs", every, "'None' must be the first and only value")
            continue
        problems = list(checks.ip_address(address, f"spec.clusterIPs[{position}]"))
        yield from problems or _in_range(address, every)
    if len(every) > 2:
        yield invalid_value("spec.clusterIPs", every, "may only hold up to 2 values")


def _in_range(address: str, every: list[str]) -> Errors:
    if ipaddress.ip_address(address) not in CLUSTER_RANGE:
        why = (
            f"failed to allocate IP {address}: the provided IP ({address}) is not in the valid range. "
            f"The range of valid IPs is {CLUSTER_RANGE}"
        )
        yield invalid_value("spec.clusterIPs", every, why)


def _node_ports(spec: Object) -> Errors:
    seen_node: set[tuple[str, int]] = set()
    seen: set[tuple[str, int]] = set()
    for position, port in enumerate(spec.get("ports") or ()):
        at, protocol, node_port = f"spec.ports[{position}]", port.get("protocol", ""), port.get("nodePort", 0)
        if node_port:
            if spec.get("type") == "ClusterIP":
                yield forbidden_field(f"{at}.nodePort", "may not be used when `type` is 'ClusterIP'")
            elif node_port not in NODE_PORTS:
                valid = f"The range of valid ports is {NODE_PORTS.start}-{NODE_PORTS.stop - 1}"
                yield invalid_value(f"{at}.nodePort", node_port, f"provided port is not in the valid range. {valid}")
            if (protocol, node_port) in seen_node:
                yield duplicate(f"{at}.nodePort", node_port)
            seen_node.add((protocol, node_port))
        key = (protocol, port.get("port", 0))
        if key in seen:
            yield duplicate(at, {
                "Name": "", "Protocol": protocol, "AppProtocol": None, "Port": port.get("port", 0), "TargetPort": 0,
                "NodePort": 0,
            })  # fmt: skip
        seen.add(key)


def _traffic_policies(spec: Object) -> Iterator[FieldError]:
    external, internal, kind = spec.get("externalTrafficPolicy"), spec.get("internalTrafficPolicy"), spec.get("type")
    reachable = kind in {"NodePort", "LoadBalancer"} or (kind == "ClusterIP" and spec.get("externalIPs"))
    if reachable:
        yield from one_of(external, "spec.externalTrafficPolicy", ("Cluster", "Local"))
    elif external:
        problem = "may only be set for externally-accessible services"
        yield invalid_value("spec.externalTrafficPolicy", external, problem)
    if internal and internal not in {"Cluster", "Local"}:
        yield not_supported("spec.internalTrafficPolicy", internal, ["Cluster", "Local"])
