"""Collect diagnostics for a support bundle. A step that fails is recorded in unread.json; the others continue."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import msgspec

from herder import __version__
from herder.api.capi.kinds import MACHINE
from herder.api.machines.kinds import CONFIG_GROUP, MACHINE_GROUP
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.settings import SERVER_VERSION, SETTING
from herder.app.doctor.finding import Finding
from herder.app.install import definitions_of
from herder.app.manager import Roles
from herder.app.metrics.catalogue import FAMILIES
from herder.app.support.archive import Archive
from herder.app.support.redaction import redacted_object, redacted_text, redacted_value
from herder.engine.client.client import Client
from herder.engine.client.discovery import Found, all_resources
from herder.engine.meta.errors import Expired, NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object

EVENTS = GroupVersionResource("", "v1", "events")
MAX_OBJECTS = 2_000
MAX_OBJECT_BYTES = 7 << 20
"""Of one resource; the pretty-printed file must not exceed the limit of a file."""
MAX_LOG = 2 << 20
MAX_METRICS = 4 << 20
STEP_SECONDS = 60.0
_PAGE = 200
_EVENT_FIELDS = ("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp", "eventTime", "source")
_REPORTS = "plan.herder.io/"
_SUMMARIZED = (CONTROL_PLANE.resource, MACHINE.resource)
_TRUNCATED = f"only the first {MAX_OBJECTS} objects, or as many as fit"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a bundle comes from."""

    client: Client
    server: str  # URL of the API server
    namespace: str = ""  # of namespaced objects; empty for all
    data_dir: Path | None = None  # of an embedded server on this host
    log: Path | None = None  # of that server
    metrics_url: str = ""


@dataclass
class Bundle:
    sources: Sources
    archive: Archive = field(default_factory=Archive)
    unread: list[dict[str, str]] = field(default_factory=list)
    kinds: set[tuple[str, str]] = field(default_factory=set)
    """Groups and names of the kinds that have objects."""
    summarized: dict[str, list[Object]] = field(default_factory=dict)
    """Redacted objects of the kinds that further files are about, by plural and group."""
    is_embedded: bool = False

    async def collect(self) -> None:
        await self._step("versions", self._versions)
        await self._objects()
        await self._step("events", self._events)
        self._operations()
        self._machines()
        await self._step("metrics", self._metrics)
        await self._step("doctor", self._doctor)
        await self._step("log of the server", self._log)
        self.archive.add_document("unread.json", self.unread)

    async def _step(self, what: str, read: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(STEP_SECONDS):
                await read()
        except TimeoutError:
            self._note_unread(what, f"no answer within {STEP_SECONDS:.0f} seconds")
        except (StatusError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            # What servers send may have any form; whatever is wrong with one part, the others are worth having.
            self._note_unread(what, f"{type(error).__name__}: {error}")

    def _note_unread(self, what: str, reason: str) -> None:
        self.unread.append({"what": what, "reason": redacted_text(reason)[:1024]})

    # --- the API ------------------------------------------------------------------------------------------------

    async def _versions(self) -> None:
        found: dict[str, Any] = {
            "herder": __version__,
            "python": sys.version,
            "platform": platform.platform(),
        }
        try:
            found["kubernetes"] = await self.sources.client.document("/version")
            self.is_embedded = "+herder" in str(found["kubernetes"].get("gitVersion"))
            setting = await self.sources.client.get(SETTING.resource, SERVER_VERSION)
            found["manager"] = setting.get("default")
        except NotFound:
            found["manager"] = "not installed"
        finally:
            self.archive.add_document("versions.json", found)

    async def _objects(self) -> None:
        """Each kind has its own time limit."""
        resources: list[Found] = []

        async def discover() -> None:
            resources.extend(await self._resources())

        await self._step("objects", discover)
        for found in resources:
            name = str(found.resource.group_resource)
            await self._step(name, lambda found=found, name=name: self._list(found, name))  # type: ignore[misc]

    async def _resources(self) -> list[Found]:
        """Herder's kinds, with those that node drivers define. Secrets are none of them."""
        definitions = definitions_of(Roles(True, True, True, True, True))
        own = {(each["spec"]["group"], each["spec"]["names"]["plural"]) for each in definitions}
        served = [found for found, _ in await all_resources(self.sources.client) if "list" in found.verbs]
        wanted = [
            found
            for found in served
            if found.resource.group in (MACHINE_GROUP, CONFIG_GROUP) or tuple(found.resource.group_resource) in own
        ]
        return sorted(wanted, key=lambda found: found.resource.group_resource)

    async def _list(self, found: Found, name: str) -> None:
        namespace = self.sources.namespace if found.namespaced else ""
        group, plural = found.resource.group_resource
        items, is_complete = await self._pages(
            found.resource, namespace, lambda obj: redacted_object(obj, group, plural)
        )
        self.kinds |= {(group, str(obj.get("kind"))) for obj in items[:1]}
        if found.resource in _SUMMARIZED:
            self.summarized[name] = items
        if items:
            self.archive.add_document(f"objects/{group}/{plural}.json", items, "" if is_complete else _TRUNCATED)

    async def _pages(
        self, resource: GroupVersionResource, namespace: str, reduce: Callable[[Object], Object | None]
    ) -> tuple[list[Object], bool]:
        """Reduced objects by namespace and name, and whether these are all."""
        items: list[Object] = []
        size, token = 0, ""
        while True:
            try:
                page = await self.sources.client.list(resource, namespace=namespace, limit=_PAGE, continue_token=token)
            except Expired:
                return sorted(items, key=_place), False
            for obj in page.items:
                reduced = reduce(obj)
                size += len(msgspec.json.encode(reduced)) * 3 // 2  # indented
                if size > MAX_OBJECT_BYTES or len(items) >= MAX_OBJECTS:
                    return sorted(items, key=_place), False
                if reduced is not None:
                    items.append(reduced)
            token = page.continue_token
            if not token:
                return sorted(items, key=_place), True

    async def _events(self) -> None:
        """Events about Herder's objects: those of other objects may be none of a maintainer's business."""

        def reduced(event: Object) -> Object | None:
            about = event.get("involvedObject") or {}
            group = str(about.get("apiVersion") or "").rpartition("/")[0]
            if (group, about.get("kind")) not in self.kinds:
                return None
            found = {name: redacted_value(event[name]) for name in _EVENT_FIELDS if event.get(name)}
            place = {name: about.get(name, "") for name in ("kind", "namespace", "name")}
            meta = event["metadata"]
            return {"metadata": {"namespace": meta.get("namespace"), "name": meta["name"]}, "about": place, **found}

        items, is_complete = await self._pages(EVENTS, self.sources.namespace, reduced)
        self.archive.add_document("events.json", items, "" if is_complete else _TRUNCATED)

    def _operations(self) -> None:
        """The operation of each cluster, and those before it."""
        found = []
        for control_plane in self.summarized.get(str(CONTROL_PLANE.resource.group_resource), ()):
            meta, status = control_plane["metadata"], control_plane.get("status") or {}
            history = {"current": status.get("operation"), "history": status.get("operationHistory")}
            found.append({"namespace": meta.get("namespace"), "cluster": meta["name"], **history})
        self.archive.add_document("operations.json", found)

    def _machines(self) -> None:
        """What node agents have reported, as the manager shows it: their plan Secrets are not read."""
        found = []
        for machine in self.summarized.get(str(MACHINE.resource.group_resource), ()):
            meta, status = machine["metadata"], machine.get("status") or {}
            annotations = meta.get("annotations") or {}
            found.append(
                {
                    "namespace": meta.get("namespace"),
                    "machine": meta["name"],
                    "cluster": (machine.get("spec") or {}).get("clusterName"),
                    "phase": status.get("phase"),
                    "node": status.get("nodeRef"),
                    "conditions": status.get("conditions"),
                    "reports": {key: value for key, value in annotations.items() if key.startswith(_REPORTS)},
                }
            )
        self.archive.add_document("machines.json", found)

    # --- processes and the host ---------------------------------------------------------------------------------

    async def _metrics(self) -> None:
        url = self.sources.metrics_url
        if url:
            text = await asyncio.to_thread(_fetched, url)
        elif self.is_embedded:
            text = await self.sources.client.text("/metrics")
        else:
            raise ValueError("not requested; pass --metrics-url with the address of herder run --metrics-listen")
        self.archive.add("metrics.txt", known_metrics(text).encode())

    async def _doctor(self) -> None:
        findings: list[Finding]
        if self.is_embedded:
            findings = await self._host_findings()
        else:
            from herder.app.doctor.cluster import ClusterOptions, examine_cluster

            findings = [
                each async for each in examine_cluster(self.sources.client, ClusterOptions(before_install=False))
            ]
        found = [{name: redacted_text(value) for name, value in asdict(each).items()} for each in findings]
        self.archive.add_document("doctor.json", found)

    async def _host_findings(self) -> list[Finding]:
        from herder.app.doctor.host import HostOptions, examine_host

        address, directory = urlsplit(self.sources.server), self.sources.data_dir
        if directory is None:
            raise ValueError("the embedded server does not run on this host, or its data directory is unknown")
        return await examine_host(HostOptions(directory, (address.hostname or "", address.port or 443)))

    async def _log(self) -> None:
        path = self.sources.log
        if path is not None and path.exists():
            text, is_complete = _tail(path)
            note = "" if is_complete else f"only the last {MAX_LOG} bytes"
            self.archive.add(f"logs/{path.name}", redacted_text(text).encode(), note)


def _place(obj: Object) -> tuple[str, str]:
    meta = obj["metadata"]
    return str(meta.get("namespace") or ""), str(meta.get("name"))


def _tail(path: Path) -> tuple[str, bool]:
    """The end of a log, from the beginning of a line: a part of a secret would not be recognized."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - MAX_LOG, 0))
        content = file.read(MAX_LOG)
    is_complete = size <= MAX_LOG
    return (content if is_complete else content.partition(b"\n")[2]).decode(errors="replace"), is_complete


def _fetched(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url}: not an HTTP URL")
    try:
        with urlopen(url, timeout=10) as response:  # noqa: S310 - the scheme is checked
            content: bytes = response.read(MAX_METRICS)
    except HTTPException as error:
        raise ValueError(f"{url}: {error}") from error
    return content.decode(errors="replace")


def known_metrics(text: str) -> str:
    """The lines of metrics that Herder defines: the address may be of any program."""
    lines = text[:MAX_METRICS].splitlines(keepends=True)
    return "".join(line for line in lines if _is_known(line))


def _is_known(line: str) -> bool:
    words = line.removeprefix("# HELP ").removeprefix("# TYPE ").split("{")[0].split()
    name = words[0] if words else ""
    parts: Iterable[str] = ("", "_bucket", "_count", "_sum", "_created")
    return any(name.removesuffix(part) in FAMILIES or f"{name.removesuffix(part)}_total" in FAMILIES for part in parts)
