"""Names that the core generates."""

from __future__ import annotations

import time

import pytest

from herder.api.capi.naming import NamingError, fnv32a, machine_name, set_name_label, template_hash


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("", "web-abcde"),
        ("{{ .machineSet.name }}-{{ .random }}", "web-abcde"),
        ("{{ .cluster.name }}-x-{{ .random }}", "prod-x-abcde"),
        ("{{.cluster.name}}-{{- .random -}}", "prod-abcde"),
        ("{{ .random }}", "abcde"),
        ("n" * 70 + "{{ .random }}", "n" * 58 + "abcde"),
    ],
)
def test_a_template_names_a_machine(template: str, name: str) -> None:
    assert machine_name(template, "prod", "web", "abcde") == name


def test_a_long_set_name_is_truncated_before_the_random_part() -> None:
    assert machine_name("", "prod", "s" * 62, "abcde") == "s" * 58 + "abcde"
    assert machine_name("", "prod", "s" * 57, "abcde") == "s" * 57 + "-abcde"


@pytest.mark.parametrize("template", ["{{ .unknown }}-{{ .random }}", "{{ .random", "{{ upper .cluster.name }}"])
def test_an_unsupported_template_is_an_error(template: str) -> None:
    with pytest.raises(NamingError):
        machine_name(template, "prod", "web", "abcde")


def test_a_name_is_its_own_label_until_it_is_too_long() -> None:
    assert set_name_label("web") == "web"
    assert set_name_label("s" * 63) == "s" * 63
    # The value that Cluster API itself computes for this name.
    assert set_name_label("machine-set-" + "x" * 60) == "hash_YZ_wZg_z"


def test_fnv32a_matches_published_values() -> None:
    assert fnv32a(b"") == 0x811C9DC5
    assert fnv32a(b"foobar") == 0xBF9CF968


def test_a_template_hash_does_not_depend_on_order() -> None:
    assert template_hash({"a": 1, "b": {"c": 2}}) == template_hash({"b": {"c": 2}, "a": 1})
    assert template_hash({"a": 1}) != template_hash({"a": 2})


def test_a_template_of_spaces_is_parsed_quickly() -> None:
    started = time.thread_time()
    with pytest.raises(NamingError):
        machine_name("{{" + " " * 800, "meadow", "workers", "abcde")
    assert time.thread_time() - started < 0.3
