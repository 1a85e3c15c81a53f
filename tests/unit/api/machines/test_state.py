"""The progress of a machine, as recorded in its state Secret."""

from __future__ import annotations

import base64
import gzip
import io
import tarfile

import pytest

from herder.api.machines.names import STATE_KEY
from herder.api.machines.state import Recorded, driver_config, recorded
from herder.engine.meta.kinds import Object
from tests.unit.controllers.machines.provision.cloud import EMPTY, archive


def state(data: str) -> Object:
    return {"metadata": {"name": "s"}, "data": {STATE_KEY: data}}


@pytest.mark.parametrize(
    ("secret", "expected"),
    [
        (None, Recorded.NOTHING),
        ({"metadata": {"name": "s"}}, Recorded.NOTHING),
        (state(""), Recorded.NOTHING),
        (state(EMPTY), Recorded.NOTHING),
        (state(archive("m", "creating")), Recorded.BEGUN),
        (state(archive("m", "created")), Recorded.CREATED),
        (state(archive("m", "removing")), Recorded.BEGUN),
        (state(archive("m", None)), Recorded.FOREIGN),
        (state("bm90IGd6aXA="), Recorded.UNREADABLE),
        (state("?"), Recorded.UNREADABLE),
        (state(base64.b64encode(gzip.compress(b"no archive")).decode()), Recorded.UNREADABLE),
        (state(base64.b64encode(gzip.compress(bytes(65 << 20))).decode()), Recorded.UNREADABLE),
    ],
)
def test_the_phase_of_a_recorded_state(secret: Object | None, expected: Recorded) -> None:
    assert recorded(secret) is expected


@pytest.mark.parametrize("count", [1, 900])
def test_a_record_that_unpacks_to_millions_of_objects_is_not_decoded(count: int) -> None:
    config = b'{"DriverName":"x","a":[' + b"{}," * (2_500_000 // count) + b"{}]}"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for number in range(count):
            entry = tarfile.TarInfo(f"/store/machines/m{number}/config.json")
            entry.size = len(config)
            tar.addfile(entry, io.BytesIO(config))
    encoded = base64.b64encode(buffer.getvalue()).decode()
    assert recorded(state(encoded)) is Recorded.UNREADABLE
    assert driver_config(encoded) is None
