"""Limits on YAML that users write, to be checked before it is loaded.

Composing nodes recurses in C: text such as 100,000 opening brackets overflows the stack and ends the process. Loading
also costs a thousand times what JSON does, and a number such as 59:59:59:… takes time by the square of its length.
Only events are read here, and counted.
"""

from __future__ import annotations

import yaml

_DEEPEST = 64
_LONGEST_NUMBER = 100
_OF_NUMBERS = frozenset("0123456789abcdefABCDEFox_:.+-")


class TooComplex(ValueError):
    """Which limit the text exceeds."""


def check_yaml(text: str, *, most_bytes: int, most_events: int) -> None:
    """Raise TooComplex for what would cost too much to load, or YAMLError."""
    if len(text.encode()) > most_bytes:
        raise TooComplex(f"has more than {most_bytes} bytes")
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))):
        if count == most_events:
            raise TooComplex(f"has more than {most_events} tokens")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise TooComplex(f"is nested more than {_DEEPEST} levels deep")
        if isinstance(event, yaml.ScalarEvent) and _is_long_number(event):
            raise TooComplex(f"has a number of more than {_LONGEST_NUMBER} characters")


def _is_long_number(event: yaml.ScalarEvent) -> bool:
    """Quoted text becomes a number by its tag alone."""
    may_be_number = not event.style or event.tag is not None
    return may_be_number and len(event.value) > _LONGEST_NUMBER and _OF_NUMBERS.issuperset(event.value)
