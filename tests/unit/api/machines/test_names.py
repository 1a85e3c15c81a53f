"""Names that others compute too, by the values that are known of them."""

from __future__ import annotations

import pytest

from herder.api.machines.names import limited_concat, safe_concat
from herder.api.rke import names


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (("demo", "rke", "state"), "demo-rke-state"),
        (("a" * 31, "b" * 31), f"{'a' * 31}-{'b' * 31}"),
        (
            ("test-mp-etcd-snapshot-conventional-arch-new-node", "pool-0", "abcdefgh"),
            "test-mp-etcd-snapshot-conventional-arch-new-node-pool-0-a-2805a",
        ),
        (("abcdef0123456789" * 4,), "abcdef0123456789abcdef0123456789abcdef0123456789abcdef012-aa23e"),
    ],
)
def test_what_does_not_fit_into_a_label_is_cut_and_told_apart_by_a_hash(parts: tuple[str, ...], joined: str) -> None:
    assert safe_concat(*parts) == joined


def test_no_name_ends_in_a_dash_before_its_hash() -> None:
    cut = safe_concat("a" * 56, "b" * 20)
    assert cut[:56] == "a" * 56
    assert len(cut.rpartition("-")[2]) == 6


def test_other_lengths_are_cut_in_the_same_way() -> None:
    assert limited_concat(24, "abcdef0123456789" * 2) == "abcdef0123456789ab-bc373"
    assert limited_concat(32, "abcdef0123456789" * 2) == "abcdef0123456789" * 2
    assert limited_concat(5, "abcdef") == "abcde"


def test_names_of_a_machine_s_objects() -> None:
    assert names.plan_secret("demo-w1") == "demo-w1-machine-plan"
    assert names.bootstrap_secret("demo-w1") == "demo-w1-machine-bootstrap"
    assert names.tokens_secret("demo") == "demo-rke-state"
    assert names.custom_machine("abc123") == "custom-6ca13d52ca70"
