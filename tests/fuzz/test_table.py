"""Thousands of invalid requests, chosen by hand: the embedded server rejects each as kube-apiserver does."""

from __future__ import annotations

import itertools

import pytest

from tests.fuzz.cases import CASES as ALL
from tests.fuzz.differences import CASES, FIELDS, explained
from tests.fuzz.outcomes import Outcome, same_code_and_reason, same_fields
from tests.fuzz.runner import send_each
from tests.fuzz.server_pair import Pair
from tests.fuzz.wire import Input

GROUPS = {group: list(cases) for group, cases in itertools.groupby(ALL, lambda case: case.about.partition(":")[0])}


@pytest.mark.parametrize("group", GROUPS)
async def test_invalid_requests_get_the_same_responses(pair: Pair, group: str) -> None:
    disagreements = []

    def compare(number: int, case: Input, real: Outcome, embedded: Outcome) -> None:
        assert not embedded.failed or real.failed, (case, embedded)
        if not same_code_and_reason(real, embedded):
            if not explained(case, real, embedded) and not _listed(case, CASES):
                disagreements.append(f"{case.about}: {real.short}, not {embedded.short}: {embedded.message[:200]}")
        elif not same_fields(real, embedded) and not _listed(case, FIELDS):
            disagreements.append(f"{case.about}: fields {real.fields}, not {embedded.fields}")

    await send_each(pair.real.connection, pair.embedded.connection, enumerate(GROUPS[group]), compare)
    assert disagreements == []


def test_every_listed_difference_matches_a_case() -> None:
    for prefix in (*CASES, *FIELDS):
        assert any(case.about.startswith(prefix) for case in ALL), prefix


def _listed(case: Input, table: dict[str, str]) -> bool:
    return any(case.about.startswith(prefix) for prefix in table)
