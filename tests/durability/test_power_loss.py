"""A short sample of `make soak`, and proof that it detects a store that does not sync."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from . import power_loss
from .checker import GuaranteeViolation
from .disk import Step, after_power_loss

needs_compiler = pytest.mark.skipif(power_loss.compiler() is None, reason="needs a C compiler (build-essential)")


@needs_compiler
def test_power_losses_violate_no_guarantee(tmp_path: Path) -> None:
    done = power_loss.run(150, seed=1, directory=tmp_path)
    assert done.disks == 150
    assert done.acknowledged > 1_000


@needs_compiler
def test_a_store_that_does_not_sync_is_detected(tmp_path: Path) -> None:
    with pytest.raises(GuaranteeViolation, match="acknowledged at"):
        power_loss.run(50, seed=1, directory=tmp_path, unsafe=True)


def test_a_disk_keeps_only_synced_data() -> None:
    steps = [
        Step("C", "/d/a", 0, b""),
        Step("W", "/d/a", 0, b"safe"),
        Step("S", "/d/a", 0, b""),
        Step("W", "/d/a", 4, b" lost"),
        Step("E", "/d/a", 0, b""),
        Step("C", "/d/b", 0, b""),
        Step("W", "/d/b", 0, b"never synced"),
    ]
    assert after_power_loss(steps, None) == {"/d/a": b"safe"}


def test_a_name_is_safe_after_a_sync_of_its_directory() -> None:
    steps = [
        Step("C", "/d/a.new", 0, b""),
        Step("W", "/d/a.new", 0, b"x"),
        Step("S", "/d/a.new", 0, b""),
        Step("E", "/d/a.new", 0, b""),
        Step("R", "/d/a.new", 0, b"/d/a"),
    ]
    assert after_power_loss(steps, None) == {"/d/a.new": b"x"}
    steps += [Step("S", "/d", 0, b""), Step("E", "/d", 0, b"")]
    assert after_power_loss(steps, None) == {"/d/a": b"x"}
    steps += [Step("U", "/d/a", 0, b"")]
    assert after_power_loss(steps, None) == {"/d/a": b"x"}


def test_unsynced_data_may_be_kept_lost_or_torn() -> None:
    steps = [
        Step("C", "/d/a", 0, b""),
        Step("W", "/d/a", 0, b"0" * 1024),
        Step("S", "/d/a", 0, b""),
        Step("E", "/d/a", 0, b""),
        Step("W", "/d/a", 0, b"1" * 1024),
    ]
    outcomes = {after_power_loss(steps, random.Random(seed))["/d/a"] for seed in range(200)}
    zero, one = b"0" * 512, b"1" * 512
    assert outcomes == {zero + zero, one + one, one + zero, zero + one}
