"""Quantities are parsed, compared and formatted as kube-apiserver does; the expected forms were recorded from one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herder.engine.meta.quantity import QuantityError, canonical, decode, parse


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("0", "0"),
        ("1.5", "1500m"),
        (".5", "500m"),
        ("0.5Mi", "512Ki"),
        ("0.1Ki", "102400m"),
        ("1000m", "1"),
        ("1000k", "1M"),
        ("1024", "1024"),
        ("2048Ki", "2Mi"),
        ("1.5Gi", "1536Mi"),
        ("1E3", "1E3"),
        ("12e4", "120e3"),
        ("1.5e3", "1500"),
        ("0.1n", "1n"),
        ("16Ei", "9223372036854775807"),
        ("1.1Ki", "1126400m"),
        ("0Ki", "0"),
    ],
)
def test_is_written_in_canonical_form(text: str, written: str) -> None:
    assert canonical(text) == written


@pytest.mark.parametrize("text", ["1.200", "1.234", "+5", "001", "1023Ki"])
def test_nearly_canonical_text_is_kept(text: str) -> None:
    assert canonical(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must match the regular expression"),
        ("1.1.1", "must match the regular expression"),
        ("abc", "must match the regular expression"),
        (" 1", "must match the regular expression"),
        ("1i", "unable to parse quantity's suffix"),
        ("1K", "unable to parse quantity's suffix"),
        ("1e", "unable to parse quantity's suffix"),
    ],
)
def test_malformed_text_is_rejected_with_the_servers_message(text: str, message: str) -> None:
    with pytest.raises(QuantityError, match=message):
        parse(text)


def test_comparison_is_by_amount_not_by_notation() -> None:
    assert parse("1Gi") == parse("1024Mi")
    assert hash(parse("1000m")) == hash(parse("1"))
    assert parse("1Gi").compare(parse("1G")) == 1
    assert parse("-1") < parse("0")


def test_huge_exponents_compare_without_being_computed() -> None:
    assert parse("1e999999999").compare(parse("1Ei")) == 1
    assert parse("1e-999999999").compare(parse("1n")) == 0
    with pytest.raises(QuantityError):
        parse("1e999999999").add(parse("1"))


def test_sums_keep_the_notation_of_the_first() -> None:
    assert str(parse("1Gi").add(parse("1024Mi"))) == "2Gi"
    assert str(parse("0").add(parse("1Gi"))) == "1Gi"
    assert str(parse("1").sub(parse("1500m"))) == "-500m"


def test_integers_are_distinguished_from_fractions() -> None:
    assert parse("50k").as_int() == 50_000
    assert parse("1500m").as_int() is None
    assert parse("1500m").value() == 2
    assert parse("1500m").scaled(-3) == 1500


def test_resource_lists_round_up_to_thousandths() -> None:
    assert str(parse("1u").rounded_up(-3)) == "1m"
    assert str(parse("1234567890.123456789").rounded_up(-3)) == "1234567890124m"


def test_json_may_hold_numbers_and_padded_strings() -> None:
    assert str(decode(1.5)) == "1500m"
    assert str(decode(" 1Gi ")) == "1Gi"


@given(st.text(alphabet="0123456789.eEinumkKMGTP+-", max_size=12))
def test_canonical_form_is_stable_and_means_the_same(text: str) -> None:
    try:
        quantity = parse(text)
    except QuantityError:
        return
    if quantity.scale + len(str(abs(quantity.unscaled))) > 18:
        return  # beyond the largest decimal suffix the power of ten is lost, as upstream
    again = parse(str(quantity))
    assert again == quantity
    assert str(parse(str(again))) == str(again)
