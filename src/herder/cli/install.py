"""Brings an API server, embedded or real, to the state that the controllers need: our kinds, our settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from herder.api.crds import FLOCK_CRD, SETTING_CRD
from herder.api.settings import SETTING, Settings, setting_objects
from herder.engine.client.client import Client
from herder.engine.meta.kinds import GroupVersionResource, Object

CRDS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
MANAGER = "herder-install"


async def install(client: Client, settings: Settings, *, example: bool) -> None:
    await install_kinds(client, [SETTING_CRD, FLOCK_CRD] if example else [SETTING_CRD])
    for obj in setting_objects(settings):
        await client.apply(SETTING.resource, obj, field_manager=MANAGER)


async def install_kinds(client: Client, definitions: Sequence[Object]) -> None:
    """Apply definitions and wait, by watching, until all are served."""
    waiting = {definition["metadata"]["name"] for definition in definitions}
    for definition in definitions:
        await client.apply(CRDS, definition, field_manager=MANAGER)
    async with asyncio.timeout(60):
        while waiting:
            async with aclosing(client.watch(CRDS, initial_events=True)) as events:
                async for event in events:
                    if event.type != "BOOKMARK" and _established(event.object):
                        waiting.discard(event.object["metadata"]["name"])
                    if not waiting:
                        return


def _established(crd: Object) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)
