"""The first line of each error names its cause."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mistakes.site import Site, running_site
from tests.mistakes.table import ALL, Mistake


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("mistakes")) as running:
        yield running


@pytest.mark.parametrize("mistake", ALL, ids=lambda mistake: mistake.title)
def test_the_first_line_names_the_cause(site: Site, mistake: Mistake) -> None:
    status, line = site.first_line(mistake)
    assert status == mistake.status, line
    missing = [word for word in mistake.cause if word not in site.shown(line)]
    assert not missing, f"{missing} not in {line!r}"
