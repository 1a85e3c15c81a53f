"""Correlation of new values with old ones, for ratcheting and transition rules.

Fields of objects and maps correlate by name, items of list maps by their keys; items of other lists do not.
"""

from __future__ import annotations

from typing import Any

from herder.engine.schema.nodes import Node


def same(one: Any, other: Any) -> bool:
    """Compare deeply as Go does, distinguishing 1 from 1.0 and from true. Iterative, since values may nest deeply."""
    waiting = [(one, other)]
    while waiting:
        left, right = waiting.pop()
        if type(left) is not type(right):
            return False
        if type(left) is dict:
            if left.keys() != right.keys():
                return False
            waiting.extend((left[name], right[name]) for name in left)
        elif type(left) is list:
            if len(left) != len(right):
                return False
            waiting.extend(zip(left, right, strict=True))
        elif left != right:
            return False
    return True


class KeyedList:
    """Items of a list map by their keys. Items with a missing or compound key cannot be found."""

    __slots__ = ("_by_key", "_keys")

    def __init__(self, node: Node, items: Any) -> None:
        self._keys = node.list_keys if node.list_type == "map" else ()
        self._by_key: dict[tuple[Any, ...], Any] = {}
        if self._keys and type(items) is list:
            for item in items:
                key = self._key(item)
                if key is not None:
                    self._by_key.setdefault(key, item)

    def get(self, item: Any) -> Any:
        key = self._key(item) if self._by_key else None
        return None if key is None else self._by_key.get(key)

    def _key(self, item: Any) -> tuple[Any, ...] | None:
        if type(item) is not dict:
            return None
        values: list[Any] = []
        for name in self._keys:
            value = item.get(name)
            if value is None or isinstance(value, (dict, list)):
                return None
            values.append((type(value), value))
        return tuple(values)


class Correlated:
    """A value with the corresponding old value."""

    __slots__ = ("_children", "_equal", "_keyed", "new", "node", "old")

    def __init__(self, node: Node, new: Any, old: Any) -> None:
        self.node = node
        self.new = new
        self.old = old
        self._children: dict[str | int, Correlated | None] = {}
        self._equal: bool | None = None
        self._keyed: KeyedList | None = None

    def key(self, name: str) -> Correlated | None:
        if name not in self._children:
            self._children[name] = self._find_field(name)
        return self._children[name]

    def index(self, index: int) -> Correlated | None:
        if index not in self._children:
            self._children[index] = self._find_item(index)
        return self._children[index]

    def _find_field(self, name: str) -> Correlated | None:
        if type(self.old) is not dict or type(self.new) is not dict or name not in self.old or name not in self.new:
            return None
        node = self.node.properties.get(name, self.node.additional)
        return None if node is None else Correlated(node, self.new[name], self.old[name])

    def _find_item(self, index: int) -> Correlated | None:
        if type(self.old) is not list or type(self.new) is not list or self.node.items is None:
            return None
        if self._keyed is None:
            self._keyed = KeyedList(self.node, self.old)
        old = self._keyed.get(self.new[index])
        return None if old is None else Correlated(self.node.items, self.new[index], old)

    def unchanged(self) -> bool:
        if self._equal is None:
            self._equal = self._compare()
        return self._equal

    def _compare(self) -> bool:
        """Compare list maps by key, ignoring order, and everything else as is."""
        new, old = self.new, self.old
        if type(new) is list and type(old) is list and self.node.list_type == "map":
            children = [self.index(index) for index in range(len(new))]
            return len(new) == len(old) and all(child is not None and child.unchanged() for child in children)
        if type(new) is dict and type(old) is dict:
            if len(new) != len(old):
                return False
            fields = [self.key(name) for name in new]
            return all(child is not None and child.unchanged() for child in fields)
        return same(new, old)


def unchanged(correlated: Correlated | None) -> bool:
    return correlated is not None and correlated.unchanged()
