"""Certificates through the years, on a clock that jumps from step to step."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from herder.engine.certificates import is_issued_by, served_names
from herder.gateway.webhooks import rotation
from herder.gateway.webhooks.rotation import OVERLAP, Certificates, from_data, generate, next_rotation, rotate, to_data

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("hooks.example.com", "192.0.2.1")


def trusts(bundle: bytes, certificate: x509.Certificate) -> bool:
    return any(is_issued_by(certificate, authority) for authority in x509.load_pem_x509_certificates(bundle))


def years(count: int) -> Iterator[tuple[datetime, Certificates, Certificates]]:
    """Each step: when, from what, to what."""
    now, kept = START, generate(NAMES, START)
    while now < START + timedelta(days=365 * count):
        now = next_rotation(kept)
        following = rotate(kept, NAMES, now)
        yield now, kept, following
        kept = following


def test_nothing_happens_before_it_is_due_and_something_does_when_it_is() -> None:
    for now, before, after in years(5):
        assert rotate(before, NAMES, now - timedelta(seconds=1)) is before
        assert after is not before


def test_what_is_served_never_expires_and_is_renewed_with_a_third_of_its_life_left() -> None:
    for now, before, _ in years(5):
        left = before.serving.certificate.not_valid_after_utc - now
        assert left >= rotation.SERVING_LIFE / 3 - timedelta(minutes=5)


def test_everybody_trusts_what_is_served_before_and_after_every_step() -> None:
    for _, before, after in years(5):
        assert trusts(after.bundle, before.serving.certificate), "a replica that still serves the old one"
        assert trusts(before.bundle, after.serving.certificate), "an API server that has the old bundle still"


def test_a_new_authority_is_known_long_enough_before_it_signs_and_the_old_one_after() -> None:
    known: dict[bytes, datetime] = {}
    signing: tuple[bytes, datetime] | None = None
    forgotten = 0
    for now, before, after in years(5):
        known.setdefault(after.authority.certificate_pem, now)
        if after.serving is not before.serving:
            signer = after.authority.certificate_pem
            assert before.authority.certificate_pem == signer
            if signing is not None and signing[0] != signer:
                assert now - known[signer] >= OVERLAP
            if signing is None or signing[0] != signer:
                signing = (signer, now)
        if len(after.older) < len(before.older):
            forgotten += 1
            assert signing is not None
            assert now - signing[1] >= OVERLAP
    assert forgotten >= 3
    assert len(known) >= 4


def test_a_server_that_gets_another_name_serves_it_at_once_and_the_old_ones_too() -> None:
    kept = generate(NAMES, START)
    after = rotate(kept, ("other.example.com",), START)
    assert set(served_names(after.serving.certificate)) == {*NAMES, "other.example.com"}
    assert rotate(after, NAMES, START) is after, "replicas with different names do not take turns"


def test_after_a_long_absence_all_is_made_anew() -> None:
    kept = generate(NAMES, START)
    late = START + timedelta(days=3650)
    after = rotate(kept, NAMES, late)
    assert after.serving.certificate.not_valid_after_utc > late
    assert trusts(after.bundle, after.serving.certificate)
    assert after.bundle != kept.bundle


def test_an_expired_certificate_is_replaced_at_once() -> None:
    kept = generate(NAMES, START)
    late = START + rotation.SERVING_LIFE + timedelta(days=1)
    after = rotate(kept, NAMES, late)
    assert after.serving.certificate.not_valid_after_utc > late
    assert trusts(kept.bundle, after.serving.certificate)


def test_a_secret_keeps_them() -> None:
    kept = next(after for _, _, after in years(5) if after.older)
    read = from_data(to_data(kept))
    assert (read.bundle, read.serving.key_pem, read.authority.key_pem) == (
        kept.bundle, kept.serving.key_pem, kept.authority.key_pem
    )  # fmt: skip
    assert next_rotation(read) == next_rotation(kept)


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
@pytest.mark.parametrize("damage", ["missing", "not base64", "of another"])
def test_damage_is_told_by_the_name_of_the_key_alone(name: str, damage: str) -> None:
    data, other = to_data(generate(NAMES, START)), to_data(generate(NAMES, START))
    data[name] = {"missing": "", "not base64": "***", "of another": other[name]}[damage]
    with pytest.raises(ValueError, match=r"(tls|ca)\.(key|crt)") as raised:
        from_data(data)
    assert len(str(raised.value)) < 60
