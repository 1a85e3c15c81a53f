"""Names that other programs compute too, with known values."""

from __future__ import annotations

import re

import pytest

from herder.api.identity.tenancy.rules import GRANTED_ROLE
from herder.api.machines.names import CREDENTIAL_ROLE, granted_role, limited_concat, provision_role, safe_concat
from herder.api.rke import names


@pytest.mark.parametrize(
    ("parts", "expected"),
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
def test_a_name_too_long_for_a_label_is_truncated_with_a_hash(parts: tuple[str, ...], expected: str) -> None:
    assert safe_concat(*parts) == expected


def test_a_truncated_name_has_no_double_dash_before_its_hash() -> None:
    cut = safe_concat("a" * 56, "b" * 20)
    assert cut[:56] == "a" * 56
    assert len(cut.rpartition("-")[2]) == 6


def test_other_limits_truncate_in_the_same_way() -> None:
    assert limited_concat(24, "abcdef0123456789" * 2) == "abcdef0123456789ab-bc373"
    assert limited_concat(32, "abcdef0123456789" * 2) == "abcdef0123456789" * 2
    assert limited_concat(5, "abcdef") == "abcde"


def test_names_of_a_machine_s_objects() -> None:
    assert names.plan_secret("demo-w1") == "demo-w1-machine-plan"
    assert names.bootstrap_secret("demo-w1") == "demo-w1-machine-bootstrap"
    assert names.tokens_secret("demo") == "demo-rke-state"
    assert names.custom_machine("abc123") == "custom-6ca13d52ca70"


@pytest.mark.parametrize("length", [5, 45, 60, 200, 253])
def test_users_cannot_create_granted_roles_of_any_length(length: int) -> None:
    """A user who creates the Role first can bind it while it is empty. The binding remains when the Role is deleted."""
    for name in (lambda it: granted_role(CREDENTIAL_ROLE, "u-abc", it), names.plan_role, provision_role):
        found = name("m" * length)
        assert re.search(GRANTED_ROLE, found)
        assert len(found) <= 253
        assert found != name("m" * (length - 1) + "n")
