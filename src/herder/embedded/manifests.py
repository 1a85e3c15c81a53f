"""Auto-deploying manifests, like those of k3s and RKE2: files in `manifests/` are applied, and their objects deleted
with the file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import yaml

from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import GroupVersion, GroupVersionResource, Object

log = get_logger(__name__)

FIELD_MANAGER = "deploy@herder"
Applied = tuple[str, str, str, str]  # API version, kind, namespace, name


class Manifests:
    """`kept` stores which objects came from which file, so that removed ones are pruned after a restart too."""

    def __init__(self, client: Client, directory: Path, kept: Path) -> None:
        self._client = client
        self._directory = directory
        self._kept = kept
        self._digests: dict[str, str] = {}
        self._applied: dict[str, list[Applied]] = _read(kept)
        self._kinds: dict[tuple[str, str], tuple[GroupVersionResource, bool]] = {}

    async def apply(self) -> list[Object]:
        """Apply all changed files; return the objects of all files."""
        wanted: list[Object] = []
        present = {str(file.relative_to(self._directory)): file for file in sorted(self._directory.rglob("*.yaml"))}
        for name, file in present.items():
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            try:
                objects = _documents(content)
            except (yaml.YAMLError, ValueError, OverflowError, TypeError, RecursionError) as problem:
                log.warning("manifest is not valid YAML", file=name, problem=str(getattr(problem, "problem", "")))
                continue
            wanted += objects
            if self._digests.get(name) != digest:
                await self._apply_file(name, objects)
                self._digests[name] = digest
        for name in set(self._applied) - set(present):
            await self._remove(self._applied.pop(name), set())
            self._digests.pop(name, None)
        self._write()
        return wanted

    async def _apply_file(self, name: str, objects: list[Object]) -> None:
        done: list[Applied] = []
        for obj in objects:
            resource, namespaced = await self._resource(obj["apiVersion"], obj["kind"])
            if namespaced:
                obj.setdefault("metadata", {}).setdefault("namespace", "default")
            await self._client.apply(resource, obj, field_manager=FIELD_MANAGER)
            done.append((obj["apiVersion"], obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))
        await self._remove(self._applied.get(name, []), set(done))
        self._applied[name] = done

    async def _remove(self, before: list[Applied], still: set[Applied]) -> None:
        for each in before:
            if each not in still:
                api_version, kind, namespace, name = each
                resource, _ = await self._resource(api_version, kind)
                await _delete(self._client, resource, namespace, name)

    async def _resource(self, api_version: str, kind: str) -> tuple[GroupVersionResource, bool]:
        """Resolve a kind, and whether it is namespaced. Unknown kinds are looked up again, because a CRD may be created
        later.
        """
        if (api_version, kind) not in self._kinds:
            version = GroupVersion.parse(api_version)
            listed = await self._client.document(f"/apis/{version}" if version.group else "/api/v1")
            for entry in listed["resources"]:
                if "/" not in entry["name"]:
                    resource = GroupVersionResource(version.group, version.version, entry["name"])
                    self._kinds[api_version, entry["kind"]] = (resource, entry["namespaced"])
        if (api_version, kind) not in self._kinds:
            raise NotFound(f"{api_version} has no kind {kind}")
        return self._kinds[api_version, kind]

    def _write(self) -> None:
        text = json.dumps(self._applied, sort_keys=True)
        if not self._kept.exists() or self._kept.read_text() != text:
            scratch = self._kept.with_suffix(".new")
            scratch.write_text(text)
            scratch.replace(self._kept)


async def _delete(client: Client, resource: GroupVersionResource, namespace: str, name: str) -> None:
    try:
        await client.delete(resource, name, namespace=namespace)
    except NotFound:
        pass
    except StatusError as problem:
        log.warning("cannot delete an object of a removed manifest", name=name, problem=problem.message)


def _documents(content: bytes) -> list[Object]:
    """Return the objects of all documents and Lists; raise ValueError for invalid ones, since users may
    edit the files.
    """
    objects: list[Object] = []
    for each in yaml.safe_load_all(content):
        is_list = isinstance(each, dict) and str(each.get("kind", "")).endswith("List")
        objects += (each.get("items") or []) if is_list else [each] if each else []
    for each in objects:
        if not isinstance(each, dict) or not all(isinstance(each.get(key), str) for key in ("apiVersion", "kind")):
            raise ValueError("a document has no apiVersion and kind")
    return objects


def _read(kept: Path) -> dict[str, list[Applied]]:
    try:
        found = json.loads(kept.read_text())
    except (OSError, ValueError):
        return {}
    return {name: [(a, b, c, d) for a, b, c, d in each] for name, each in found.items()}
