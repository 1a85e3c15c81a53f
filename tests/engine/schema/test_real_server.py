"""The recorded answers are those of a real kube-apiserver: asked again here, it says the same."""

from __future__ import annotations

import json
from pathlib import Path

from tests.engine.schema.real_server import RECORDED, ask
from tests.support.kube import RealKube


def test_a_real_server_still_gives_the_recorded_answers(tmp_path: Path) -> None:
    with RealKube(tmp_path) as kube:
        answers = ask(kube)
    assert answers == json.loads(RECORDED.read_text())
