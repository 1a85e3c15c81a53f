# ruff: noqa: E501 — lists of values read better in few lines
"""Values that are almost valid: a valid value with one part replaced, dropped, duplicated or renamed."""

from __future__ import annotations

import random
from typing import Any

STRINGS = [
    "", "a", "A", "x" * 64, "x" * 254, "a b", "a/b", "a.b", "-a", "é", "💥", "\x00", "\n", "..", "%", "true", "null", "0", "-1", "1e3", "1Gi", "50%",
    "2024-01-01T00:00:00Z", "2024-13-01", "10.0.0.1", "::1", "http://x", "standing", "default", "kube-system", "v1", "apps/v1", "*", "system:masters", "$patch",
]  # fmt: skip
NUMBERS: list[int | float] = [0, 1, -1, 2, 65535, 65536, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0, 1e300, 1.0]  # fmt: skip


def junk(dice: random.Random) -> Any:
    match dice.randrange(8):
        case 0:
            return None
        case 1:
            return dice.random() < 0.5
        case 2 | 3:
            return dice.choice(NUMBERS)
        case 4 | 5:
            return dice.choice(STRINGS)
        case 6:
            return [junk(dice) for _ in range(dice.randrange(3))]
        case _:
            return {dice.choice(STRINGS): junk(dice) for _ in range(dice.randrange(3))}


def mutated(value: Any, dice: random.Random) -> Any:
    """The value with one change; mostly deep inside, sometimes at the top."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        return _mutated_object(value, dice)
    if isinstance(value, list) and value and dice.random() < 0.8:
        return _mutated_list(value, dice)
    if isinstance(value, str) and dice.random() < 0.5:
        place = dice.randrange(len(value) + 1)
        return value[:place] + dice.choice(STRINGS) + value[place:]
    if isinstance(value, int | float) and dice.random() < 0.5:
        return dice.choice(NUMBERS)
    return junk(dice)


def _mutated_object(value: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    key = dice.choice(list(value))
    copied = dict(value)
    match dice.randrange(12):
        case 0:
            del copied[key]
        case 1:
            copied[dice.choice(STRINGS)] = junk(dice)
        case 2:
            copied[key.upper() if dice.random() < 0.5 else f"{key}x"] = copied.pop(key)
        case _:
            copied[key] = mutated(value[key], dice)
    return copied


def _mutated_list(value: list[Any], dice: random.Random) -> list[Any]:
    place = dice.randrange(len(value))
    match dice.randrange(8):
        case 0:
            return [*value[:place], *value[place + 1 :]]
        case 1:
            return [*value, value[place]]
        case 2:
            return [*value, junk(dice)]
        case _:
            return [*value[:place], mutated(value[place], dice), *value[place + 1 :]]


def mutated_repeatedly(value: Any, dice: random.Random) -> Any:
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        value = mutated(value, dice)
    return value


def mangled(content: bytes, dice: random.Random) -> bytes:
    """Bytes flipped, cut, duplicated or inserted."""
    changed = bytearray(content)
    for _ in range(dice.choice([1, 1, 2, 4])):
        place = dice.randrange(len(changed) + 1)
        match dice.randrange(5):
            case 0:
                changed[place : place + 1] = bytes([dice.randrange(256)])
            case 1:
                del changed[place : place + dice.choice([1, 2, 8, 1000])]
            case 2:
                changed[place:place] = dice.randbytes(dice.choice([1, 2, 10]))
            case 3:
                changed[place:place] = changed[place : place + dice.choice([1, 5, 40])]
            case _:
                if place < len(changed):
                    changed[place] ^= 1 << dice.randrange(8)
    return bytes(changed)
