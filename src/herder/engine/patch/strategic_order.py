"""In which order the items of a merged list stand.

The order asked for wins over the order of the live list, and items that only the live list has keep their place
relative to those that both have, as far as that can be known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from operator import itemgetter
from typing import Any

from herder.engine.patch.goformat import plain
from herder.engine.patch.strategic_errors import StrategicPatchError, failed, go_kind

Identity = Callable[[Any], Any]

_SORTED_BY_INSERTION = 20


def holds_maps(*lists: list[Any]) -> bool:
    """Whether the items are objects; lists of lists and lists of mixed kinds cannot be merged."""
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


def check_against(patch: list[Any], wanted: list[Any], merge_key: str) -> None:
    """The items of the patch must all stand in the wanted order, and in that order."""
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


def arrange(items: list[Any], wanted: list[Any], live: list[Any], merge_key: str, of_maps: bool) -> list[Any]:
    """The items: those in `wanted` in that order, woven into the rest, which keeps the live order."""
    if of_maps:
        for item in (*items, *wanted, *live):
            if not isinstance(item, dict):
                raise failed(f"expected a map[string]interface {{}}, but received a {go_kind(item)}")
            if merge_key not in item:
                raise no_merge_key(item, merge_key)

    def identity(item: Any) -> Any:
        found = item[merge_key] if of_maps else item
        return found if isinstance(found, Hashable) else plain(found)

    wanted_at = _positions(map(identity, wanted))
    live_at = _positions(map(identity, live))
    asked = _stable([item for item in items if identity(item) in wanted_at], wanted_at, identity)
    others = _stable([item for item in items if identity(item) not in wanted_at], live_at, identity)
    return _weave(others, asked, live_at, identity)


def _positions(identities: Iterable[Any]) -> dict[Any, int]:
    positions: dict[Any, int] = {}
    for position, identity in enumerate(identities):
        positions.setdefault(identity, position)
    return positions


def _stable(items: list[Any], positions: dict[Any, int], identity: Identity) -> list[Any]:
    """The items by their positions. An item without one counts as smaller than any that it is compared with, which is
    no order at all: what the real server makes of that (it turns items around) depends on how it sorts, and is the
    same here for lists as short as it sorts by insertion."""
    places = [positions.get(identity(item), -1) for item in items]
    if -1 not in places or len(items) > _SORTED_BY_INSERTION:
        return [item for _, item in sorted(zip(places, items, strict=True), key=itemgetter(0))]
    items = list(items)
    for start in range(1, len(items)):
        at = start
        while at > 0 and (places[at] < places[at - 1] or -1 in (places[at], places[at - 1])):
            items[at - 1 : at + 1] = items[at], items[at - 1]
            places[at - 1 : at + 1] = places[at], places[at - 1]
            at -= 1
    return items


def _weave(others: list[Any], asked: list[Any], live_at: dict[Any, int], identity: Identity) -> list[Any]:
    """Each of the others goes before the first asked-for item that the live list had after it."""
    woven: list[Any] = []
    position = 0
    for other in others:
        while position < len(asked) and not _stood_before(other, asked[position], live_at, identity):
            woven.append(asked[position])
            position += 1
        woven.append(other)
    return woven + asked[position:]


def _stood_before(left: Any, right: Any, live_at: dict[Any, int], identity: Identity) -> bool:
    at_left, at_right = live_at.get(identity(left)), live_at.get(identity(right))
    return at_left is not None and at_right is not None and at_left < at_right
