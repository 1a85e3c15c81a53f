"""Kubernetes protobuf with errors that keep its structure: fields dropped, duplicated, retyped, cut and renumbered."""

from __future__ import annotations

import base64
import functools
import random
from typing import Any

from tests.fuzz.cases.bodies import varint
from tests.fuzz.inputs.mutation import STRINGS, mangled
from tests.unit.engine.apiserver.builtin.answers import REAL

_MAGIC = b"k8s\x00"
Field = tuple[int, int, Any]  # number, wire type, value


@functools.cache
def recorded() -> dict[str, bytes]:
    """Valid bodies by object, as kube-apiserver encoded them."""
    return {key: base64.b64decode(body) for key, body in REAL["protobuf"].items()}


def corrupted(body: bytes, dice: random.Random) -> bytes:
    if dice.random() < 0.25:
        return mangled(body, dice)
    for _ in range(dice.choice([1, 1, 2, 3])):
        changed = _message(body[len(_MAGIC) :], dice)
        body = _MAGIC + changed if changed is not None else mangled(body, dice)
    return body


def _message(body: bytes, dice: random.Random) -> bytes | None:
    """The message with one field changed, here or deeper; None if this is no message."""
    fields = _parsed(body)
    if not fields:
        return None
    place = dice.randrange(len(fields))
    number, wire, value = fields[place]
    if wire == 2 and dice.random() < 0.8:
        inner = _message(value, dice)
        if inner is not None:
            fields[place] = (number, wire, inner)
            return _encoded(fields)
    match dice.randrange(8):
        case 0:
            del fields[place]
        case 1:
            fields.insert(dice.randrange(len(fields) + 1), fields[place])
        case 2:
            fields[place] = (dice.choice([0, 1, 2, 3, 5, 17, 99, 2**28]), wire, value)
        case 3:
            fields[place] = (number, 0, dice.choice([0, 1, 2**31, 2**32, 2**63, 2**64 - 1]))
        case 4:
            fields[place] = (number, 2, dice.choice(STRINGS).encode())
        case 5:
            fields[place] = (number, 2, dice.randbytes(dice.randrange(6)))
        case 6:
            fields[place] = (number, dice.choice([1, 5]), dice.randbytes(8))
        case _:
            fields[place] = (number, wire, mangled(value, dice) if wire == 2 else 2**64 - 1)
    return _encoded(fields)


def _parsed(body: bytes) -> list[Field] | None:
    fields: list[Field] = []
    at = 0
    try:
        while at < len(body):
            key, at = _varint(body, at)
            number, wire = key >> 3, key & 7
            value: Any
            if wire == 0:
                value, at = _varint(body, at)
            elif wire == 2:
                size, at = _varint(body, at)
                value, at = body[at : at + size], at + size
                if at > len(body):
                    return None
            else:
                return None
            if not number:
                return None
            fields.append((number, wire, value))
    except IndexError:
        return None
    return fields


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def _encoded(fields: list[Field]) -> bytes:
    out = b""
    for number, wire, value in fields:
        out += varint(number << 3 | wire)
        if wire == 0:
            out += varint(value)
        elif wire == 2:
            out += varint(len(value)) + value
        else:
            out += value[: 8 if wire == 1 else 4]
    return out
