from __future__ import annotations

import itertools

from herder.engine.apiserver.registry.entropy import EntropyPool


def test_small_requests_share_one_read_without_reusing_bytes() -> None:
    drawn: list[int] = []
    numbers = itertools.count()

    def draw(count: int) -> bytes:
        drawn.append(count)
        return b"".join(next(numbers).to_bytes(4, "big") for _ in range(count // 4))

    pool = EntropyPool(draw)
    portions = [pool(16) for _ in range(1000)]
    assert len(set(portions)) == 1000
    assert drawn == [4096] * 4
    assert len(pool(2)) == 2


def test_secrets_are_read_separately() -> None:
    drawn: list[int] = []

    def draw(count: int) -> bytes:
        drawn.append(count)
        return bytes(count)

    assert EntropyPool(draw)(32) == bytes(32)
    assert drawn == [32]
