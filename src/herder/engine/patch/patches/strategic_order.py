"""Order of the items of a merged list.

The requested order takes precedence over the order of the live list. Items that only the live list has keep their
position relative to common items, as far as it can be determined.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from operator import itemgetter
from typing import Any

from herder.engine.patch.goformat import plain
from herder.engine.patch.patches.strategic_errors import StrategicPatchError, failed, go_kind

Identity = Callable[[Any], Any]

_INSERTION_SORT_LENGTH = 20


def are_maps(*lists: list[Any]) -> bool:
    """Return whether the items are objects; lists of lists and of mixed kinds cannot be merged."""
    kinds = [type(item) for items in lists for item in items]
    if not kinds:
        raise failed("no elements in any of the given slices")
    if kinds[0] is list:
        raise StrategicPatchError.list_of_lists()
    if any(kind is not kinds[0] for kind in kinds):
        raise failed(f"list element types are not identical: {plain(list(lists))}")
    return kinds[0] is dict


def no_merge_key(item: dict[str, Any], key: str) -> StrategicPatchError:
    return failed(f"map: {plain(item)} does not contain declared merge key: {key}")


def check_order(patch: list[Any], wanted: list[Any], merge_key: str) -> None:
    """Require that all items of the patch occur in the requested order."""
    if not wanted or not patch:
        return
    items = [item for item in patch if not (merge_key and _deletes(item))]
    at_item = at_wanted = 0
    while at_item < len(items) and at_wanted < len(wanted):
        item = items[at_item]
        if isinstance(item, dict) and "$patch" in item:
            at_item += 1
            continue
        at_item += _same_key(item, wanted[at_wanted], merge_key)
        at_wanted += 1
    if at_item < len(items) and at_wanted == len(wanted):
        raise failed(
            f"The order in patch list:\n{plain(patch)}\n doesn't match $setElementOrder list:\n{plain(wanted)}\n"
        )


def _deletes(item: Any) -> bool:
    if not isinstance(item, dict):
        raise failed(f"expected a map[string]interface {{}}, but received a {go_kind(item)}")
    return item.get("$patch") == "delete"


def _same_key(left: Any, right: Any, merge_key: str) -> bool:
    if not merge_key:
        return bool(left == right)
    for side in (left, right):
        if not isinstance(side, dict):
            raise failed(f"expected a map[string]interface {{}}, but received a {go_kind(side)}")
        if merge_key not in side:
            raise no_merge_key(side, merge_key)
    return bool(left[merge_key] == right[merge_key])


def order_items(items: list[Any], wanted: list[Any], live: list[Any], merge_key: str, is_map_list: bool) -> list[Any]:
    """Order the items: those in `wanted` in that order, interleaved with the others in live order."""
    if is_map_list:
        for item in (*items, *wanted, *live):
            if not isinstance(item, dict):
                raise failed(f"expected a map[string]interface {{}}, but received a {go_kind(item)}")
            if merge_key not in item:
                raise no_merge_key(item, merge_key)

    def identity(item: Any) -> Any:
        found = item[merge_key] if is_map_list else item
        return found if isinstance(found, Hashable) else plain(found)

    wanted_at = _positions(map(identity, wanted))
    live_at = _positions(map(identity, live))
    requested = _stable([item for item in items if identity(item) in wanted_at], wanted_at, identity)
    others = _stable([item for item in items if identity(item) not in wanted_at], live_at, identity)
    return _interleave(others, requested, live_at, identity)


def _positions(identities: Iterable[Any]) -> dict[Any, int]:
    positions: dict[Any, int] = {}
    for position, identity in enumerate(identities):
        positions.setdefault(identity, position)
    return positions


def _stable(items: list[Any], positions: dict[Any, int], identity: Identity) -> list[Any]:
    """Sort the items by position.

    An item without a position counts as smaller than any other, which is not a total order. The result in
    kube-apiserver depends on its sort algorithm; this function matches it for lists short enough for insertion sort.
    """
    places = [positions.get(identity(item), -1) for item in items]
    if -1 not in places or len(items) > _INSERTION_SORT_LENGTH:
        return [item for _, item in sorted(zip(places, items, strict=True), key=itemgetter(0))]
    items = list(items)
    for start in range(1, len(items)):
        at = start
        while at > 0 and (places[at] < places[at - 1] or -1 in (places[at], places[at - 1])):
            items[at - 1 : at + 1] = items[at], items[at - 1]
            places[at - 1 : at + 1] = places[at], places[at - 1]
            at -= 1
    return items


def _interleave(others: list[Any], requested: list[Any], live_at: dict[Any, int], identity: Identity) -> list[Any]:
    """Put each of the others before the first requested item that followed it in the live list."""
    interleaved: list[Any] = []
    position = 0
    for other in others:
        while position < len(requested) and not _was_before(other, requested[position], live_at, identity):
            interleaved.append(requested[position])
            position += 1
        interleaved.append(other)
    return interleaved + requested[position:]


def _was_before(left: Any, right: Any, live_at: dict[Any, int], identity: Identity) -> bool:
    at_left, at_right = live_at.get(identity(left)), live_at.get(identity(right))
    return at_left is not None and at_right is not None and at_left < at_right
