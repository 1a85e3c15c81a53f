"""Fixtures for real machines, which need root and the machine image; the image is built once and cached."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from herder.machine.host.local import image
from tests.unit.machine.local.host import Host


@pytest.fixture(scope="session")
def debian() -> Path:
    if os.geteuid() != 0:
        pytest.skip("machines of this host in a network namespace of the test's own: needs root")
    for tool in ("ip", "nsenter", "ssh", "ssh-keygen", "mmdebstrap", "newuidmap"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}: scripts/setup dev")
    return image.make("", lambda _percent, _text: None, kubernetes=True)


@pytest.fixture(scope="module")
def host(debian: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with Host(tmp_path_factory.mktemp("local")) as host:
        yield host
