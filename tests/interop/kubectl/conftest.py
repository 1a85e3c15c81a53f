from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.kubectl.objects import DEFINITION, OBJECTS
from tests.interop.kubectl.side_by_side import SideBySide
from tests.support.engines import Engine


@pytest.fixture(scope="module")
def both(embedded_engine: Engine, real_engine: Engine) -> Iterator[SideBySide]:
    """Both engines, with a namespace of the same name that contains one object of each kind."""
    both = SideBySide(embedded_engine, real_engine)
    for engine in both.engines:
        engine.kubectl("create", "namespace", both.namespace)
        engine.kubectl("apply", "-f", "-", stdin=DEFINITION)
        engine.kubectl("wait", "--for=condition=Established", "crd/fences.pasture.example.com")
        engine.kubectl("wait", "--for=create", "-n", both.namespace, "serviceaccount/default")
    both.kubectl("apply", "-f", "-", stdin=OBJECTS)
    both.check()
    yield both
    both.close()


@pytest.fixture(autouse=True)
def agreement(both: SideBySide) -> Iterator[None]:
    yield
    both.check()
