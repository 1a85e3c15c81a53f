from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.sshd import Sshd, sshd


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("host")) as host:
        yield host
