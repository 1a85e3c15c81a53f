"""Reference admission: the cost before an object is validated."""

from __future__ import annotations

import time
from typing import Any

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.engine.meta.errors import Forbidden
from herder.engine.wire import User
from herder.gateway.admission.references import ReferenceAdmission, Write


async def test_an_object_with_too_many_values_is_rejected_without_reading_it() -> None:
    unused: Any = None
    admission = ReferenceAdmission(unused, unused, User("manager"))
    spec = {"rkeConfig": {"machineSelectorConfig": [5] * 1_000_000}}
    kind = PROVISIONING_CLUSTER
    write = Write(
        kind.group_kind, kind.resource.group_resource, "fleet-default", "meadow", {"spec": spec}, None, User("ann")
    )
    started = time.thread_time()
    with pytest.raises(Forbidden, match="values"):
        await admission.admit(write)
    assert time.thread_time() - started < 0.1
