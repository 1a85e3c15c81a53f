"""Node service of a kubeadm cluster: pod routes, and removal of etcd members.

Runs on the machine with its own Python (3.6 or newer). It watches the Nodes of the cluster, writes the CNI bridge
configuration of the machine's pods, and maintains a route to the pods of each other machine. If a Node is annotated for
removal, that server stops serving, and another server removes its member from etcd.
"""

import argparse
import functools
import http.client
import ipaddress
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple
from urllib.parse import urlsplit

PROTOCOL = "201"  # marks our own routes
CNI_FILE = "/etc/cni/net.d/10-herder.conflist"
ADMIN = "/etc/kubernetes/admin.conf"
ETCD_PKI = "/etc/kubernetes/pki/etcd"
MANIFESTS = "/etc/kubernetes/manifests"
SERVING = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
API_PORT = 6443
REMOVE = "etcd.kubeadm.cattle.io/remove"
REMOVED = "etcd.kubeadm.cattle.io/removed-node-name"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
SILENCE_SECONDS = 30.0
WATCH_SECONDS = 300
PAUSE_SECONDS = 2.0

Object = Dict[str, Any]


# --- API ------------------------------------------------------------------------------------------------------------


class Api:
    """Reads Nodes, with a kubeconfig in JSON that has a token and a CA file, as the planner writes it."""

    def __init__(self, kubeconfig: str) -> None:
        with open(kubeconfig) as file:
            content = json.load(file)
        cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
        server = urlsplit(cluster["server"])
        self._host, self._port = server.hostname or "", server.port or 443
        self._token = user["token"]
        self._context = ssl.create_default_context(cafile=cluster["certificate-authority"])

    def nodes(self) -> Tuple[Dict[str, Object], str]:
        answer = self._get("/api/v1/nodes", 60)
        listed = json.loads(answer.read().decode())
        return {each["metadata"]["name"]: each for each in listed["items"]}, listed["metadata"]["resourceVersion"]

    def watch(self, version: str) -> Iterator[Tuple[str, Object]]:
        """Watch until the server ends it, every few minutes."""
        query = f"watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={WATCH_SECONDS}"
        answer = self._get("/api/v1/nodes?" + query, WATCH_SECONDS + 30)
        while True:
            line = answer.readline()
            if not line:
                return
            event = json.loads(line.decode())
            yield event["type"], event["object"]

    def _get(self, path: str, timeout: int) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._context, timeout=timeout)
        headers = {"Authorization": "Bearer " + self._token, "Accept": "application/json"}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"GET /api/v1/nodes: {answer.status} {answer.reason}")
        return answer


# --- routes ---------------------------------------------------------------------------------------------------------


def wanted_routes(nodes: Dict[str, Object], own: str, pods: List[str]) -> Dict[str, str]:
    """Map pod networks to machine addresses, for all other machines.

    `pods` are the pod networks of the cluster. Machines report their own addresses, so any text is possible.
    """
    routes = {}
    for name, node in nodes.items():
        for network in pod_networks(node) if name != own else []:
            usable = [each for each in internal_addresses(node) if is_route(network, each, tuple(pods))]
            if usable:
                routes[network] = usable[0]
    return routes


@functools.lru_cache(maxsize=16384)
def is_route(network: str, address: str, pods: Tuple[str, ...]) -> bool:
    """Whether the network is a pod network of this cluster, and the address can be that of a machine."""
    try:
        inner, gateway = ipaddress.ip_network(network), ipaddress.ip_address(address)
        outer = [ipaddress.ip_network(each, strict=False) for each in pods]
    except ValueError:
        return False
    if gateway.is_loopback or gateway.is_multicast or gateway.is_unspecified or gateway.version != inner.version:
        return False
    known = [each for each in outer if each.version == inner.version and each.prefixlen <= inner.prefixlen]
    return any(each.overlaps(inner) for each in known)


def pod_networks(node: Object) -> List[str]:
    spec = node.get("spec") or {}
    return list(spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else []))


def internal_addresses(node: Object) -> List[str]:
    found = (node.get("status") or {}).get("addresses") or []
    return [str(each["address"]) for each in found if each["type"] == "InternalIP"]


def bridge(networks: List[str]) -> Object:
    ranges = [[{"subnet": network}] for network in networks]
    routes = [{"dst": "::/0" if ":" in network else "0.0.0.0/0"} for network in networks]
    return {
        "cniVersion": "0.4.0",
        "name": "herder",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


class Network:
    def __init__(self, own: str, pods: List[str]) -> None:
        self._own = own
        self._pods = pods  # pod networks of the cluster: traffic between them is not masqueraded
        self._masqueraded = False

    def become(self, nodes: Dict[str, Object]) -> None:
        own = nodes.get(self._own)
        if own is not None and pod_networks(own):
            write_if_new(CNI_FILE, json.dumps(bridge(pod_networks(own)), indent=2, sort_keys=True))
        if not self._masqueraded:
            for network in self._pods:
                masquerade(network)
            self._masqueraded = True
        wanted, known = wanted_routes(nodes, self._own, self._pods), own_routes()
        for network, address in wanted.items():
            if known.get(network) != address:
                change_route(network, "replace", network, "via", address, "proto", PROTOCOL)
        for network in set(known) - set(wanted):
            change_route(network, "del", network, "proto", PROTOCOL)


def change_route(network: str, *words: str) -> None:
    """Change a route; a failure does not affect other routes, and is retried at the next change of a Node."""
    try:
        run("ip", *family(network), "route", *words)
    except OSError as problem:
        log(f"route to {network}: {problem}")


def own_routes() -> Dict[str, str]:
    """Return our routes by network, in the format of Nodes: ip prints `default`, and omits the length of
    host routes.
    """
    routes = {}
    for flag, everything in (("-4", "0.0.0.0/0"), ("-6", "::/0")):
        listed = run("ip", flag, "-json", "route", "show", "proto", PROTOCOL)
        for each in json.loads(listed or "[]"):
            if each.get("gateway"):
                network = everything if each["dst"] == "default" else each["dst"]
                routes[str(ipaddress.ip_network(network))] = each["gateway"]
    return routes


def family(network: str) -> Tuple[str, ...]:
    return ("-6",) if ":" in network else ("-4",)


def masquerade(network: str) -> None:
    """Masquerade traffic of pods to other destinations than pods."""
    program = "ip6tables" if ":" in network else "iptables"
    rule = ("POSTROUTING", "-s", network, "!", "-d", network, "-j", "MASQUERADE")
    if not succeeds(program, "-w", "-t", "nat", "-C", *rule):
        run(program, "-w", "-t", "nat", "-A", *rule)


# --- etcd members ---------------------------------------------------------------------------------------------------


def is_server(node: Object) -> bool:
    return CONTROL_PLANE in (node["metadata"].get("labels") or {})


def is_leaving(node: Object) -> bool:
    return bool((node["metadata"].get("annotations") or {}).get(REMOVE) == "true")


def to_remove(nodes: Dict[str, Object]) -> List[str]:
    """Return servers whose etcd member must be removed. Only servers count: a worker can annotate its own Node."""
    found = []
    for name, node in sorted(nodes.items()):
        if is_server(node) and is_leaving(node) and not (node["metadata"].get("annotations") or {}).get(REMOVED):
            found.append(name)
    return found


def acting_server(nodes: Dict[str, Object]) -> Optional[str]:
    """Return the server that acts, so that two never remove members at the same time: the first that is ready and
    remains.
    """
    for name, node in sorted(nodes.items()):
        if is_server(node) and not is_leaving(node) and is_ready(node):
            return name
    return None


def is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def stop_serving() -> None:
    """Stop the API server: without etcd it would keep its clients connected."""
    for name in SERVING:
        path = os.path.join(MANIFESTS, name + ".yaml")
        if os.path.exists(path):
            os.remove(path)


def wait_for_silence(address: str, seconds: float = SILENCE_SECONDS) -> None:
    """Wait until the API server there has stopped, but not longer than `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection((address, API_PORT), 1.0).close()
        except OSError:
            return
        time.sleep(0.2)


def remove_member(name: str) -> None:
    members = json.loads(etcdctl("member", "list", "--write-out=json"))["members"]
    for member in members:
        if member.get("name") == name:
            etcdctl("member", "remove", f"{member['ID']:x}")
    run("kubectl", "--kubeconfig", ADMIN, "annotate", "--overwrite", "node", name, f"{REMOVED}={name}")


def etcdctl(*words: str) -> str:
    """Use the local endpoint, with the health check certificate of kubeadm."""
    return run(
        "etcdctl",
        "--endpoints=https://127.0.0.1:2379",
        f"--cacert={ETCD_PKI}/ca.crt",
        f"--cert={ETCD_PKI}/healthcheck-client.crt",
        f"--key={ETCD_PKI}/healthcheck-client.key",
        *words,
    )


# --- processes and files --------------------------------------------------------------------------------------------


def run(*command: str) -> str:
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = done.communicate()
    if done.returncode:
        raise OSError(f"{command[0]} {command[1]}: {errors.decode(errors='replace').strip()[-500:]}")
    return out.decode()


def succeeds(*command: str) -> bool:
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def write_if_new(path: str, text: str) -> None:
    try:
        with open(path) as file:
            if file.read() == text:
                return
    except OSError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


# --- service --------------------------------------------------------------------------------------------------------


def follow(api: Api, act: Any) -> None:
    """Call `act` with all Nodes, initially and on every change; raise if the API does not respond."""
    nodes, version = api.nodes()
    act(nodes)
    for event, obj in api.watch(version):
        if event == "ERROR":
            return
        if event == "BOOKMARK":
            continue
        if event == "DELETED":
            nodes.pop(obj["metadata"]["name"], None)
        else:
            nodes[obj["metadata"]["name"]] = obj
        act(nodes)


def log(message: str) -> None:
    sys.stderr.write(f"herder-node-service: {message}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "herder-node-service",
        description="Configure pod routes of this machine, and remove etcd members of machines that are deleted.",
        epilog="example:\n"
        "  herder-node-service --kubeconfig kubeconfig.json --node node-1 --pods 10.42.0.0/16,fd00:42::/56 --server",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kubeconfig", required=True, metavar="FILE", help="kubeconfig of the cluster, as JSON")
    parser.add_argument("--node", required=True, metavar="NAME", help="name of the Node of this machine")
    parser.add_argument("--pods", required=True, metavar="CIDR,...", help="comma-separated CIDRs of the pod network")
    parser.add_argument("--server", action="store_true", help="this machine runs etcd")
    return parser


def main() -> None:
    options = _parser().parse_args()
    network = Network(options.node, options.pods.split(","))

    def act(nodes: Dict[str, Object]) -> None:
        network.become(nodes)
        if not options.server:
            return
        if options.node in nodes and is_leaving(nodes[options.node]):
            stop_serving()
        elif acting_server(nodes) == options.node:
            for name in to_remove(nodes):
                for address in internal_addresses(nodes[name])[:1]:
                    wait_for_silence(address)
                remove_member(name)

    while True:
        try:
            follow(Api(options.kubeconfig), act)
        except (OSError, ValueError, http.client.HTTPException) as problem:
            log(str(problem))
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
