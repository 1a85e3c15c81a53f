"""Limits on YAML from users, checked before it is loaded.

Composing nodes recurses in C: text such as 100,000 opening brackets overflows the stack and crashes the process.
Loading also costs a thousand times as much as JSON, and parsing a number such as 59:59:59:… takes quadratic time. This
module only parses events and counts them.
"""

from __future__ import annotations

import yaml

_MAX_DEPTH = 64
_MAX_NUMBER_LENGTH = 100
_NUMBER_CHARACTERS = frozenset("0123456789abcdefABCDEFox_:.+-")


class TooComplex(ValueError):
    """The text exceeds a limit; the message says which."""


def check_yaml(text: str, *, max_bytes: int, max_events: int) -> None:
    """Raise TooComplex if the text would be too expensive to load, or YAMLError if it is invalid."""
    if len(text.encode()) > max_bytes:
        raise TooComplex(f"has more than {max_bytes} bytes")
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))):
        if count == max_events:
            raise TooComplex(f"has more than {max_events} tokens")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise TooComplex(f"is nested more than {_MAX_DEPTH} levels deep")
        if isinstance(event, yaml.ScalarEvent) and _is_long_number(event):
            raise TooComplex(f"has a number of more than {_MAX_NUMBER_LENGTH} characters")


def _is_long_number(event: yaml.ScalarEvent) -> bool:
    """Return whether the scalar may be a very long number; quoted text is one only with an explicit tag."""
    may_be_number = not event.style or event.tag is not None
    return may_be_number and len(event.value) > _MAX_NUMBER_LENGTH and _NUMBER_CHARACTERS.issuperset(event.value)
