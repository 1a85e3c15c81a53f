"""Aggregated ClusterRoles: their rules are the union of the roles that their selectors match."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from msgspec import json

from herder.engine.apiserver.auth.rbac import CLUSTER_ROLES
from herder.engine.apiserver.auth.system_objects import object_encoder
from herder.engine.control.loop import ControlLoop
from herder.engine.control.source import StoreInformer
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.store import Event, Key, Put, Record, RevisionConflict, Store

# the only queue key: all roles are reconciled together, because one pass may change the input of the next
_ALL = "clusterroles"


def aggregated_rules(role: Object, others: Iterable[Object]) -> list[Object] | None:
    """Return the rules of an aggregating role; None for a role without aggregationRule."""
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
    """Controller that writes aggregated rules to ClusterRoles."""

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
        if event.deleted or _affects_aggregation(event.record, event.previous):
            self._loop.add(_ALL)

    async def _reconcile(self, _key: str) -> None:
        await self.aggregate_all()

    async def aggregate_all(self) -> None:
        """Update every aggregating role. Repeats until nothing changes (admin aggregates edit, which aggregates
        view)."""
        while True:
            records = {record.key: record for record in self._store.list(str(CLUSTER_ROLES))}
            roles: Mapping[Key, Object] = {key: json.decode(record.value) for key, record in records.items()}
            changes = []
            for key, role in roles.items():
                rules = aggregated_rules(role, roles.values())
                if rules is not None and not _same_rules(rules, role.get("rules") or []):
                    changes.append(Put(key, object_encoder(role | {"rules": rules}), records[key].revision))
            if not changes:
                return
            try:
                await self._store.commit(*changes)
            except RevisionConflict:
                continue  # another client changed a role: start over


def _same_rules(left: list[Object], right: list[Object]) -> bool:
    """Compare rules regardless of order: otherwise two roles that aggregate each other would reorder each other
    forever."""
    return len(left) == len(right) and all(rule in right for rule in left)


def _affects_aggregation(record: Record, previous: Record | None) -> bool:
    """Whether labels, rules or aggregationRule may have changed."""
    if previous is None:
        return True
    new, old = json.decode(record.value), json.decode(previous.value)
    return any(
        (new.get(part), new["metadata"].get("labels")) != (old.get(part), old["metadata"].get("labels"))
        for part in ("rules", "aggregationRule")
    )
