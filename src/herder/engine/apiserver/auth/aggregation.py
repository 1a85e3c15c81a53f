"""ClusterRoles made of others: their rules follow whatever their selectors find."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from msgspec import json

from herder.engine.apiserver.auth.rbac import CLUSTER_ROLES
from herder.engine.apiserver.auth.stored import stored
from herder.engine.control.loop import ControlLoop
from herder.engine.control.source import StoreInformer
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.store import Event, Key, Put, Record, RevisionConflict, Store

_ALL = "clusterroles"  # the only key: one pass may feed the next


def aggregated_rules(role: Object, others: Iterable[Object]) -> list[Object] | None:
    """The rules that an aggregating role should have; None for a role that does not aggregate."""
    selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors")
    if not selectors:
        return None
    own_name = role["metadata"]["name"]
    by_name = sorted(others, key=lambda other: str(other["metadata"]["name"]))
    rules: list[Object] = []
    for raw in selectors:
        selector = label_selector_from_object(raw)
        for other in by_name:
            metadata = other["metadata"]
            if metadata["name"] == own_name or selector is None or not selector.matches(metadata.get("labels")):
                continue
            rules.extend(rule for rule in other.get("rules") or () if rule not in rules)
    return rules


class RoleAggregator:
    """Writes aggregated rules back. `run` for as long as the server does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop: ControlLoop[str] = ControlLoop("clusterrole-aggregation", self._reconcile)

    async def run(self) -> None:
        informer = StoreInformer(
            self._store, str(CLUSTER_ROLES), resync=lambda: self._loop.add(_ALL), changed=self._changed
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._loop.run())
            tasks.create_task(informer.run())

    def _changed(self, event: Event) -> None:
        if event.deleted or _matters(event.record, event.previous):
            self._loop.add(_ALL)

    async def _reconcile(self, _key: str) -> None:
        await self.settle()

    async def settle(self) -> None:
        """Bring every aggregating role up to date. One pass may feed the next (admin gathers edit gathers view)."""
        while True:
            records = {record.key: record for record in self._store.list(str(CLUSTER_ROLES))}
            roles: Mapping[Key, Object] = {key: json.decode(record.value) for key, record in records.items()}
            changes = []
            for key, role in roles.items():
                rules = aggregated_rules(role, roles.values())
                if rules is not None and not _same(rules, role.get("rules") or []):
                    changes.append(Put(key, stored(role | {"rules": rules}), records[key].revision))
            if not changes:
                return
            try:
                await self._store.commit(*changes)
            except RevisionConflict:
                continue  # somebody else changed one: look again


def _same(left: list[Object], right: list[Object]) -> bool:
    """Order does not matter: two roles that gather each other would otherwise reorder each other for ever."""
    return len(left) == len(right) and all(rule in right for rule in left)


def _matters(record: Record, previous: Record | None) -> bool:
    """Whether labels, rules or the aggregation may have changed."""
    if previous is None:
        return True
    new, old = json.decode(record.value), json.decode(previous.value)
    return any(
        (new.get(part), new["metadata"].get("labels")) != (old.get(part), old["metadata"].get("labels"))
        for part in ("rules", "aggregationRule")
    )
