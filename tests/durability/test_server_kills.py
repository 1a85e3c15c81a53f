"""A short sample of the long run in `python -m tests.soak`."""

from __future__ import annotations

from pathlib import Path

from tests.durability import server_kills


async def test_ten_kills_of_the_server_lose_nothing(tmp_path: Path) -> None:
    await server_kills.run(10, 1, tmp_path / "data")


def test_the_checker_finds_a_lost_write_and_a_lost_or_repeated_event() -> None:
    lost = server_kills.History(acknowledged={"a": (5, "x")})
    server_kills.check_objects(lost, {})
    assert lost.problems == ["a: acknowledged x, stored None"]
    missed = server_kills.History(revisions={6: "a"}, events=[(5, "ADDED", "a", "1"), (7, "MODIFIED", "a", "3")])
    server_kills.check_events(missed)
    assert "never seen" in missed.problems[0]
    repeated = server_kills.History(events=[(5, "ADDED", "a", "1"), (5, "ADDED", "a", "1")])
    server_kills.check_events(repeated)
    assert "repeated" in repeated.problems[0]
