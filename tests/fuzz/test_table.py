"""Thousands of wrong requests, chosen by hand: the embedded server refuses each as the real server does."""

from __future__ import annotations

import itertools

import pytest

from tests.fuzz.cases import CASES as ALL
from tests.fuzz.comparing import Outcome, same_fields, same_verdict
from tests.fuzz.differences import CASES, FIELDS, explained
from tests.fuzz.running import each
from tests.fuzz.wire import Input
from tests.fuzz.world import Pair

GROUPS = {group: list(cases) for group, cases in itertools.groupby(ALL, lambda case: case.about.partition(":")[0])}


@pytest.mark.parametrize("group", GROUPS)
async def test_wrong_requests_are_refused_alike(pair: Pair, group: str) -> None:
    disagreements = []

    def compare(number: int, case: Input, real: Outcome, embedded: Outcome) -> None:
        assert not embedded.failed or real.failed, (case, embedded)
        if not same_verdict(real, embedded):
            if not explained(case, real, embedded) and not _listed(case, CASES):
                disagreements.append(f"{case.about}: {real.short}, not {embedded.short}: {embedded.message[:200]}")
        elif not same_fields(real, embedded) and not _listed(case, FIELDS):
            disagreements.append(f"{case.about}: fields {real.fields}, not {embedded.fields}")

    await each(pair.real.connection, pair.embedded.connection, enumerate(GROUPS[group]), compare)
    assert disagreements == []


def test_every_listed_difference_is_of_a_case() -> None:
    for beginning in (*CASES, *FIELDS):
        assert any(case.about.startswith(beginning) for case in ALL), beginning


def _listed(case: Input, table: dict[str, str]) -> bool:
    return any(case.about.startswith(beginning) for beginning in table)
