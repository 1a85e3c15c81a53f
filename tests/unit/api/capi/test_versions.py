"""Kubernetes versions as users write them."""

from __future__ import annotations

import pytest

from herder.api.capi.versions import oldest_first, parse


@pytest.mark.parametrize(
    ("text", "expected", "minor"),
    [
        ("v1.31.2", "1.31.2", 31),
        ("1.31.2", "1.31.2", 31),
        ("v1.31", "1.31.0", 31),
        ("v1.31.2+rke2r1", "1.31.2+rke2r1", 31),
        ("v1.32.0-rc.1", "1.32.0-rc.1", 32),
    ],
)
def test_a_version_is_read_leniently(text: str, expected: str, minor: int) -> None:
    version = parse(text)
    assert (str(version), version.minor) == (expected, minor)


@pytest.mark.parametrize("text", ["", "latest", "v1.x.0"])
def test_an_invalid_version_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_versions_are_ordered_by_number_and_prerelease() -> None:
    texts = ["v1.10.0", "v1.9.3", "latest", "v1.10.0-rc.1"]
    assert oldest_first(texts) == ["latest", "v1.9.3", "v1.10.0-rc.1", "v1.10.0"]


def test_builds_of_a_version_have_no_order() -> None:
    assert parse("v1.31.0+k3s2").same_but_build(parse("v1.31.0+k3s1"))
    assert not parse("v1.31.0+k3s2").newer_than(parse("v1.31.0+k3s1"))
