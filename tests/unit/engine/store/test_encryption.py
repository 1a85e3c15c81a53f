"""Secrets are encrypted at rest, and the store does not open with a wrong key."""

from __future__ import annotations

import base64
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from herder.engine.store import Cipher, KeyMissing, Store, StoreError

from .conftest import Opener, delete, key, put, values

SECRET = key("s", resource="secrets")


def is_secret(resource: str) -> bool:
    return resource == "secrets"


def on_disk(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("store.db*")))


@pytest.fixture
def cipher(tmp_path: Path) -> Cipher:
    return Cipher.load_or_create(tmp_path / "key")


async def test_secrets_are_not_readable_on_disk_and_others_are(opener: Opener, cipher: Cipher) -> None:
    store = opener(cipher=cipher, encrypted=is_secret)
    await store.write(put(SECRET, "hunter2"), put("a", "plainly"))
    await store.write(put(SECRET, "hunter3"))
    await store.write(delete(SECRET))
    await store.close()
    raw = on_disk(opener.path)
    assert b"plainly" in raw
    assert b"hunter" not in raw
    assert b"s:gone" not in raw


async def test_secrets_are_decrypted_after_a_restart_and_from_history(opener: Opener, cipher: Cipher) -> None:
    store = opener(cipher=cipher, encrypted=is_secret)
    await store.write(put(SECRET, "one"))
    await store.write(put(SECRET, "two"))
    await store.close()
    store = opener(cipher=cipher, encrypted=is_secret)
    assert values(store.list("secrets")) == ["s:two@2"]
    assert values(await store.list_at("secrets", "", 1)) == ["s:one@1"]
    [first, second] = await anext(store.watch("secrets", since=0))
    assert second.previous is not None
    assert (first.record.value, second.previous.value) == (b"s:one@1", b"s:one@1")


@pytest.mark.parametrize("other", ["none", "another"])
async def test_without_the_right_key_the_store_does_not_open_and_is_unchanged(
    opener: Opener, cipher: Cipher, tmp_path: Path, other: str
) -> None:
    store = opener(cipher=cipher, encrypted=is_secret)
    await store.write(put(SECRET, "one"))
    await store.close()
    before = on_disk(opener.path)
    wrong = None if other == "none" else Cipher.load_or_create(tmp_path / "other")
    with pytest.raises(KeyMissing, match=rf"encrypted with key {cipher.active_key_id}, which is not in the key file"):
        opener(cipher=wrong, encrypted=is_secret)
    assert on_disk(opener.path) == before
    assert values(opener(cipher=cipher, encrypted=is_secret).list("secrets")) == ["s:one@1"]


async def test_a_store_that_never_encrypted_needs_no_key(opener: Opener, cipher: Cipher) -> None:
    store = opener(cipher=cipher, encrypted=is_secret)
    await store.write(put("a"))
    await store.close()
    assert values(opener().list("pods")) == ["a:@1"]


async def test_the_first_key_encrypts_and_older_keys_still_decrypt(opener: Opener, tmp_path: Path) -> None:
    path = tmp_path / "key"
    old = Cipher.load_or_create(path)
    store = opener(cipher=old, encrypted=is_secret)
    await store.write(put(SECRET, "old"))
    await store.close()
    path.write_bytes(base64.b64encode(os.urandom(32)) + b"\n" + path.read_bytes())
    both = Cipher.load(path)
    assert both.active_key_id != old.active_key_id
    store = opener(cipher=both, encrypted=is_secret)
    assert values(store.list("secrets")) == ["s:old@1"]
    await store.write(put(SECRET, "new"))
    await store.close()
    with pytest.raises(KeyMissing):
        opener(cipher=old, encrypted=is_secret)
    store = opener(cipher=both, encrypted=is_secret)
    assert values(store.list("secrets")) == ["s:new@2"]
    assert values(await store.list_at("secrets", "", 1)) == ["s:old@1"]


async def test_encryption_can_be_enabled_later(opener: Opener, cipher: Cipher) -> None:
    store = opener()
    await store.write(put(SECRET, "before"))
    await store.close()
    store = opener(cipher=cipher, encrypted=is_secret)
    assert values(store.list("secrets")) == ["s:before@1"]


async def test_a_value_moved_to_another_row_does_not_decrypt(opener: Opener, cipher: Cipher) -> None:
    other = key("t", resource="secrets")
    store = opener(cipher=cipher, encrypted=is_secret)
    await store.write(put(SECRET, "one"), put(other, "two"))
    await store.close()
    with sqlite3.connect(opener.path / "store.db") as connection:
        connection.execute("UPDATE revisions SET value = (SELECT value FROM revisions WHERE revision = 1)")
    connection.close()
    with pytest.raises(StoreError, match=r"the encrypted value of secrets default/t at revision 2 was altered on disk"):
        opener(cipher=cipher, encrypted=is_secret)


def test_a_key_file_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "key"
    first = Cipher.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Cipher.load_or_create(path).active_key_id == first.active_key_id


def test_a_key_file_readable_by_others_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "key"
    Cipher.load_or_create(path)
    path.chmod(0o640)
    with pytest.raises(StoreError, match="mode must be 0600, found 0640"):
        Cipher.load_or_create(path)


@pytest.mark.parametrize("content", ["", "short\n", "bm90IDMyIGJ5dGVz\n", "not base64 at all !\n"])
def test_a_malformed_key_file_is_rejected_without_printing_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(StoreError, match="must hold one base64 key of 32 bytes per line") as refusal:
        Cipher.load_or_create(path)
    assert not content.strip() or content.strip() not in str(refusal.value)


async def test_equal_values_have_different_ciphertexts(opener: Opener, cipher: Cipher) -> None:
    store: Store = opener(cipher=cipher, encrypted=is_secret)
    sealed = {cipher.seal(SECRET, 1, b"same") for _ in range(10)}
    assert len(sealed) == 10
    assert {cipher.open(SECRET, 1, value) for value in sealed} == {b"same"}
    await store.close()


async def test_after_reencryption_the_old_key_is_no_longer_needed(opener: Opener, tmp_path: Path) -> None:
    path = tmp_path / "key"
    old = Cipher.load_or_create(path)
    store = opener()
    await store.write(put(SECRET, "hunter0"))
    await store.close()
    store = opener(cipher=old, encrypted=is_secret)
    for n in range(1, 300):
        await store.write(put(SECRET, f"hunter{n}"))
    await store.write(put("a", "plainly"))
    await store.close()
    new_line = base64.b64encode(os.urandom(32)) + b"\n"
    path.write_bytes(new_line + path.read_bytes())
    store = opener(cipher=Cipher.load(path), encrypted=is_secret)
    await store.reseal()
    await store.close()
    path.write_bytes(new_line)
    store = opener(cipher=Cipher.load(path), encrypted=is_secret)
    assert (store.revision, values(store.list("secrets"))) == (301, ["s:hunter299@300"])
    for revision in (1, 2, 150):
        assert values(await store.list_at("secrets", "", revision)) == [f"s:hunter{revision - 1}@{revision}"]
    assert values(store.list("pods")) == ["a:plainly@301"]
    with sqlite3.connect(opener.path / "store.db") as connection:
        assert connection.execute("SELECT sum(sealed), count(*) FROM revisions").fetchone() == (300, 301)
    connection.close()
