"""Join URLs: determine the URL of each server, and select the server that each machine joins."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import msgspec

from herder.api.numbers import parse_int64
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.names import JOIN_URL, JOIN_URL_BY_HAND, JOINED_TO
from herder.api.writes import ref
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.runtime.decision import Patch

CAPTURE_ADDRESS, ETCD_NAME = "capture-address", "etcd-name"
CONFIG_DIRECTORY, CONFIG_FILE = "/etc/rancher/", "/config.yaml.d/50-rancher.yaml"
_MAX_HASH = 2**32 - 1
_MAX_OUTPUT = 16 << 10  # bytes that a node reports of its etcd members


# --- the join URL of a machine ----------------------------------------------------------------------------------------


def record_join_url(entry: PlanEntry, port: int) -> Patch | None:
    """Record the machine's join URL, and the server that it joined, if the plan Secret does not have them yet."""
    if JOIN_URL_BY_HAND in entry.annotations:
        return None
    found = {JOIN_URL: _join_url(entry, port)}
    if not entry.is_init and not entry.joined_to and entry.plan.has_plan:
        found[JOINED_TO] = _delivered_server(entry)
    changes = {name: value for name, value in found.items() if value and entry.annotations.get(name) != value}
    if not changes:
        return None
    secret = entry.plan.secret
    why = f"how {entry.name} is joined"
    return Patch(ref(PLAN_SECRET, secret), {"metadata": {"annotations": changes}}, why)


def url_of(address: str, port: int) -> str:
    return f"https://{f'[{address}]' if ':' in address else address}:{port}"


def host_of(url: str) -> str:
    return url.removeprefix("https://").rpartition(":")[0].strip("[]")


def port_of(url: str) -> int:
    """The port of a join URL; 0 if it has none."""
    port = parse_int64(url.rpartition(":")[2])
    return port if 0 < port < 1 << 16 else 0


def _join_url(entry: PlanEntry, port: int) -> str:
    if entry.is_init and entry.roles.only_etcd:
        return _url_from_members(entry, port)
    address = _address(entry) if entry.node_info else ""
    return url_of(address, port) if address else ""


def _address(entry: PlanEntry) -> str:
    """The last internal address, else the first external one."""
    addresses = (entry.machine.get("status") or {}).get("addresses") or ()
    internal = [each["address"] for each in addresses if each["type"] == "InternalIP"]
    external = [each["address"] for each in addresses if each["type"] == "ExternalIP"]
    return internal[-1] if internal else external[0] if external else ""


def _url_from_members(entry: PlanEntry, port: int) -> str:
    """The address of an etcd-only machine, which registers no Node: that of its etcd member's client URL."""
    name = _last_output(entry, ETCD_NAME).strip()
    line = next((each for each in _last_output(entry, CAPTURE_ADDRESS).splitlines() if each.startswith("{")), "")
    for member in _members(line):
        if name and member.get("name") == name:
            host = _host(member.get("clientURLs"))
            return url_of(host, port) if host else ""
    return ""


def _host(urls: object) -> str:
    """The address in the first URL. Other machines join it, so anything but an IP address is rejected."""
    first = urls[0] if isinstance(urls, list) and urls else None
    try:
        host = urlsplit(first).hostname if isinstance(first, str) else None
        return str(ip_address(host or ""))
    except ValueError:
        return ""


def _last_output(entry: PlanEntry, instruction: str) -> str:
    output = entry.plan.periodic_outputs.get(instruction)
    if output is None or output.exit_code or not output.last_successful_run_time:
        return ""
    return (output.stdout or b"")[:_MAX_OUTPUT].decode(errors="replace")


def _members(line: str) -> list[dict[str, Any]]:
    try:
        answer = msgspec.json.decode(line or "{}")
    except (ValueError, RecursionError):
        return []
    members = answer.get("members") if isinstance(answer, dict) else None
    return [member for member in members if isinstance(member, dict)] if isinstance(members, list) else []


def _delivered_server(entry: PlanEntry) -> str:
    """The server in the machine's plan. Plans of older managers are the only record of it."""
    plan = entry.plan.plan
    for file in plan.files if plan else ():
        if file.path.startswith(CONFIG_DIRECTORY) and file.path.endswith(CONFIG_FILE):
            try:
                config = msgspec.json.decode(base64.b64decode(file.content))
            except (ValueError, RecursionError):
                return ""
            return str(config.get("server") or "") if isinstance(config, dict) else ""
    return ""


# --- the server that a machine joins ----------------------------------------------------------------------------------


class Servers:
    """Servers of a cluster that can be joined, computed once for all machines."""

    def __init__(self, entries: Sequence[PlanEntry]) -> None:
        self.init = next((each.join_url for each in entries if each.is_init), "")
        self.control_plane = [each.join_url for each in sorted(entries, key=lambda each: each.name) if each.is_joinable]
        remaining = (each for each in entries if not each.is_deleting and (each.roles.control_plane or each.is_init))
        self.known = {each.join_url for each in remaining}

    def server_for(self, entry: PlanEntry) -> str:
        """The URL that the machine joins; empty if no server can be joined yet."""
        return self._for_worker(entry) if entry.roles.only_worker else self.init

    def _for_worker(self, entry: PlanEntry) -> str:
        """Keep the joined server while it exists; otherwise spread workers by a hash of the UID."""
        if entry.joined_to and entry.joined_to in self.known:
            return entry.joined_to
        if not self.control_plane:
            return ""
        hashed = min(zlib.crc32(entry.uid.encode()), _MAX_HASH - 1)
        return self.control_plane[hashed * len(self.control_plane) // _MAX_HASH]
