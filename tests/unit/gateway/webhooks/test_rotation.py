"""Rotation of certificates over years, on a clock that jumps from step to step."""

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
    """Each rotation: its time, and the certificates before and after it."""
    now, current = START, generate(NAMES, START)
    while now < START + timedelta(days=365 * count):
        now = next_rotation(current)
        rotated = rotate(current, NAMES, now)
        yield now, current, rotated
        current = rotated


def test_certificates_rotate_exactly_when_due() -> None:
    for now, before, after in years(5):
        assert rotate(before, NAMES, now - timedelta(seconds=1)) is before
        assert after is not before


def test_the_serving_certificate_is_renewed_with_a_third_of_its_lifetime_left() -> None:
    for now, before, _ in years(5):
        remaining = before.serving.certificate.not_valid_after_utc - now
        assert remaining >= rotation.SERVING_LIFE / 3 - timedelta(minutes=5)


def test_old_and_new_bundles_trust_old_and_new_certificates() -> None:
    for _, before, after in years(5):
        assert trusts(after.bundle, before.serving.certificate), "a replica that still serves the old certificate"
        assert trusts(before.bundle, after.serving.certificate), "an API server that still has the old bundle"


def test_a_new_ca_is_published_before_it_signs_and_the_old_one_is_kept_after() -> None:
    known: dict[bytes, datetime] = {}
    signing: tuple[bytes, datetime] | None = None
    removed = 0
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
            removed += 1
            assert signing is not None
            assert now - signing[1] >= OVERLAP
    assert removed >= 3
    assert len(known) >= 4


def test_a_new_name_is_added_to_the_serving_certificate_at_once() -> None:
    current = generate(NAMES, START)
    after = rotate(current, ("other.example.com",), START)
    assert set(served_names(after.serving.certificate)) == {*NAMES, "other.example.com"}
    assert rotate(after, NAMES, START) is after, "replicas with different names do not alternate"


def test_everything_is_reissued_after_a_long_downtime() -> None:
    current = generate(NAMES, START)
    late = START + timedelta(days=3650)
    after = rotate(current, NAMES, late)
    assert after.serving.certificate.not_valid_after_utc > late
    assert trusts(after.bundle, after.serving.certificate)
    assert after.bundle != current.bundle


def test_an_expired_certificate_is_replaced_at_once() -> None:
    current = generate(NAMES, START)
    late = START + rotation.SERVING_LIFE + timedelta(days=1)
    after = rotate(current, NAMES, late)
    assert after.serving.certificate.not_valid_after_utc > late
    assert trusts(current.bundle, after.serving.certificate)


def test_certificates_are_read_back_from_their_secret() -> None:
    current = next(after for _, _, after in years(5) if after.older)
    read = from_data(to_data(current))
    assert (read.bundle, read.serving.key_pem, read.authority.key_pem) == (
        current.bundle, current.serving.key_pem, current.authority.key_pem
    )  # fmt: skip
    assert next_rotation(read) == next_rotation(current)


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
@pytest.mark.parametrize("damage", ["missing", "not base64", "of another"])
def test_damaged_data_is_reported_by_its_key_only(name: str, damage: str) -> None:
    data, other = to_data(generate(NAMES, START)), to_data(generate(NAMES, START))
    data[name] = {"missing": "", "not base64": "***", "of another": other[name]}[damage]
    with pytest.raises(ValueError, match=r"(tls|ca)\.(key|crt)") as raised:
        from_data(data)
    assert len(str(raised.value)) < 60
