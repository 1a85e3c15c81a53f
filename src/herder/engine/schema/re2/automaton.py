"""Lazily built DFA: each character costs one dictionary lookup once its transition is known.

A DFA state is a set of NFA places, together with the class of the previous character (for anchors and word boundaries).
Transitions are computed on first use. The cache is bounded: a pattern with too many states drops it and starts over.
Time stays linear in the text, but then each character visits every place of the pattern; visits are charged to the work
meter.
"""

from __future__ import annotations

from herder.engine.meta.work import current_meter
from herder.engine.schema.re2 import syntax
from herder.engine.schema.re2.charsets import WORD, CharSet
from herder.engine.schema.re2.syntax import Assertion, Chars, Choice, Node, Repeat, Sequence

_MAX_STATES = 500
_MAX_TRANSITIONS = 256
_MAX_PLACES_IN_STATES = 50_000
"""Limit for all cached states together: a state of a large pattern can have thousands of places."""

# Character classes before and after a position, which assertions test.
_EDGE, _NEWLINE, _WORD, _OTHER = range(4)
_IS_WORD = CharSet(WORD)

_MATCH = -1


class _Program:
    """The pattern as NFA places: a place consumes a character of a set, forks, or asserts."""

    def __init__(self, tree: Node) -> None:
        self.consumes: list[CharSet | None] = []
        self.asserts: list[int | None] = []
        self.next: list[tuple[int, ...]] = []
        self._sets: dict[tuple[tuple[int, int], ...], CharSet] = {}
        self._meter = current_meter()
        self.start = self._build(tree, _MATCH)

    def _place(self, following: tuple[int, ...], consumes: CharSet | None = None, asserts: int | None = None) -> int:
        self._meter.spend(1)  # repeats multiply their body: a short pattern can have very many places
        self.consumes.append(consumes)
        self.asserts.append(asserts)
        self.next.append(following)
        return len(self.next) - 1

    def _build(self, node: Node, after: int) -> int:
        """Return the places of a node that continue at `after`; built from the end, so that each knows its
        successor."""
        if isinstance(node, Chars):
            taken = self._sets.get(node.ranges)
            if taken is None:
                taken = self._sets[node.ranges] = CharSet(node.ranges)
            return self._place((after,), consumes=taken)
        if isinstance(node, Assertion):
            return self._place((after,), asserts=node.kind)
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                after = self._build(part, after)
            return after
        if isinstance(node, Choice):
            return self._place(tuple(self._build(option, after) for option in node.options))
        return self._build_repeat(node, after)

    def _build_repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = self._place((after,))
            self.next[loop] = (self._build(node.body, loop), after)
            first = loop
        else:
            first = after
            for _ in range(node.most - node.least):
                first = self._place((self._build(node.body, first), after))
        for _ in range(node.least):
            first = self._build(node.body, first)
        return first


class _State(dict[str, "_State"]):
    """One DFA state; as a dict, its known transitions."""

    __slots__ = ("_accepts", "automaton", "before", "final", "matched", "places")

    def __init__(self, automaton: Automaton, places: frozenset[int], before: int) -> None:
        self.automaton = automaton
        self.places = places
        self.before = before
        self.matched = False
        self.final = False  # no further character can change the result
        self._accepts: bool | None = None

    def accepts(self) -> bool:
        """Return whether a text that ends here matches."""
        if self._accepts is None:
            self._accepts = self.automaton.accepts(self)
        return self._accepts

    def __missing__(self, char: str) -> _State:
        following = self.automaton.step(self, char)
        if len(self) >= _MAX_TRANSITIONS:
            self.clear()
        self[char] = following
        return following


class Automaton:
    """DFA of one pattern, built while it runs."""

    def __init__(self, tree: Node) -> None:
        self._program = _Program(tree)
        kinds = {kind for kind in self._program.asserts if kind is not None}
        self._looks_at_lines = bool(kinds & {syntax.BEGIN_LINE, syntax.END_LINE})
        self._looks_at_words = bool(kinds & {syntax.WORD_BOUNDARY, syntax.NO_WORD_BOUNDARY})
        self._matched = _State(self, frozenset(), _OTHER)
        self._matched.matched = self._matched.final = True
        self._states: dict[tuple[frozenset[int], int], _State] = {}
        self._held = 0
        # A pattern that is anchored at the start cannot match elsewhere.
        self._restart = frozenset((self._program.start,)) if self._may_start_later() else frozenset[int]()
        self._begin = _State(self, frozenset((self._program.start,)), _EDGE)

    @property
    def size(self) -> int:
        return len(self._program.next)

    def search(self, text: str) -> bool:
        state = self._begin
        for char in text:
            state = state[char]
            if state.final:
                return state.matched
        return state.accepts()

    def accepts(self, state: _State) -> bool:
        return _MATCH in self._reachable(state, _EDGE)

    def step(self, state: _State, char: str) -> _State:
        code = ord(char)
        kind = self._kind(code)
        reached = self._reachable(state, kind)
        current_meter().spend(2 * len(reached))
        if _MATCH in reached:
            return self._matched
        consumes, following = self._program.consumes, self._program.next
        moved = set(self._restart)
        for place in reached:
            taken = consumes[place]
            if taken is not None and code in taken:
                moved.add(following[place][0])
        return self._state(frozenset(moved), kind)

    def _state(self, places: frozenset[int], before: int) -> _State:
        state = self._states.get((places, before))
        if state is None:
            if len(self._states) >= _MAX_STATES or self._held >= _MAX_PLACES_IN_STATES:
                self._states.clear()
                self._begin.clear()
                self._held = 0
            self._held += len(places)
            state = self._states[places, before] = _State(self, places, before)
            state.final = not places
        return state

    def _kind(self, code: int) -> int:
        if self._looks_at_words and code in _IS_WORD:
            return _WORD
        if self._looks_at_lines and code == 10:
            return _NEWLINE
        return _OTHER

    def _reachable(self, state: _State, after: int) -> set[int]:
        """Return all places reachable without consuming a character, given the classes before and after this
        position."""
        program = self._program
        seen: set[int] = set()
        waiting = list(state.places)
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            if place == _MATCH or program.consumes[place] is not None:
                continue
            asserted = program.asserts[place]
            if asserted is None or _assertion_holds(asserted, state.before, after):
                waiting.extend(program.next[place])
        return seen

    def _may_start_later(self) -> bool:
        """Return whether the pattern can match without `^`."""
        probe = _State(self, frozenset((self._program.start,)), _OTHER)
        contexts = [(before, after) for before in (_NEWLINE, _WORD, _OTHER) for after in range(4)]
        for before, after in contexts:
            probe.before = before
            reached = self._reachable(probe, after)
            if any(place == _MATCH or self._program.consumes[place] is not None for place in reached):
                return True
        return False


def _assertion_holds(kind: int, before: int, after: int) -> bool:
    if kind == syntax.BEGIN_TEXT:
        return before == _EDGE
    if kind == syntax.END_TEXT:
        return after == _EDGE
    if kind == syntax.BEGIN_LINE:
        return before in (_EDGE, _NEWLINE)
    if kind == syntax.END_LINE:
        return after in (_EDGE, _NEWLINE)
    return ((before == _WORD) != (after == _WORD)) == (kind == syntax.WORD_BOUNDARY)
