"""The key file of a store whose keys another party manages."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from herder.engine.store import StoreError, key_file
from herder.engine.store.cipher import Cipher

ONE, TWO, THREE = (base64.b64encode(bytes([number]) * 32) for number in (1, 2, 3))


def manage(directory: Path, *lines: bytes) -> str:
    (directory / key_file.MANAGED).write_bytes(b"\n".join(lines) + b"\n")
    return key_file.compose(directory)


def keys(directory: Path) -> list[bytes]:
    return (directory / key_file.KEY_FILE).read_bytes().split()


def test_without_managed_keys_nothing_is_written(tmp_path: Path) -> None:
    assert key_file.compose(tmp_path) == ""
    assert not [*tmp_path.iterdir()]


def test_managed_keys_become_the_key_file(tmp_path: Path) -> None:
    first = manage(tmp_path, TWO, ONE)
    assert keys(tmp_path) == [TWO, ONE]
    assert stat.S_IMODE((tmp_path / key_file.KEY_FILE).stat().st_mode) == 0o600
    assert Cipher.load(tmp_path / key_file.KEY_FILE)
    assert manage(tmp_path, TWO) != first
    assert keys(tmp_path) == [TWO]


def test_a_key_that_the_store_created_is_used_while_it_is_named(tmp_path: Path) -> None:
    own = Cipher.load_or_create(tmp_path / key_file.KEY_FILE).active_key_id
    created = keys(tmp_path)
    manage(tmp_path, key_file.OWN, ONE)
    assert keys(tmp_path) == [*created, ONE]
    for _ in range(2):
        manage(tmp_path, ONE, key_file.OWN)
        key_file.confirm(tmp_path)
        assert keys(tmp_path) == [ONE, *created]
    assert Cipher.load(tmp_path / key_file.KEY_FILE).has_key(own)
    manage(tmp_path, ONE)
    assert keys(tmp_path) == [ONE]
    assert (tmp_path / key_file.LOCAL).exists(), "until the store has been opened without it"
    key_file.confirm(tmp_path)
    assert not (tmp_path / key_file.LOCAL).exists()


def test_former_keys_stay_until_the_store_has_been_opened(tmp_path: Path) -> None:
    manage(tmp_path, ONE)
    manage(tmp_path, TWO)
    manage(tmp_path, THREE)
    assert (tmp_path / key_file.FORMER).read_bytes().split() == [ONE]
    key_file.confirm(tmp_path)
    assert not (tmp_path / key_file.FORMER).exists()


def test_a_file_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no key"):
        manage(tmp_path, b"")
