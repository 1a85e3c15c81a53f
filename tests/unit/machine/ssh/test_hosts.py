"""Which host keys are accepted."""

from __future__ import annotations

import pytest

from herder.machine.driver import Reach
from herder.machine.ssh.hosts import HostKeys, fingerprint
from herder.machine.ssh.keys import new_key_pair, new_rsa_key_pair


def host_key() -> str:
    return new_key_pair()[1].decode().strip()


ONE, TWO = host_key(), host_key()


def test_the_first_key_is_kept_once_it_let_us_in() -> None:
    files: dict[str, bytes] = {}
    saved: list[bool] = []
    hosts = HostKeys(Reach("192.0.2.1", 2222), files, remember=lambda: saved.append(True))
    assert hosts.accepts(ONE)
    assert (files, saved) == ({}, [])
    hosts.keep_first_seen()
    assert files == {"known_hosts": f"[192.0.2.1]:2222 {ONE}\n".encode()}  # as ssh itself reads it
    assert saved == [True]


def test_another_one_later_is_refused_with_both_fingerprints_and_how_to_accept_it() -> None:
    hosts = HostKeys(Reach("192.0.2.1"), {"known_hosts": f"192.0.2.1 {ONE}\n".encode()})
    assert hosts.accepts(ONE)
    assert not hosts.accepts(TWO)
    told = str(hosts.refused)
    assert fingerprint(ONE) in told
    assert fingerprint(TWO) in told
    assert "--accept-new-host-key" in told


def test_the_address_may_change_and_the_key_may_not() -> None:
    hosts = HostKeys(Reach("192.0.2.99"), {"known_hosts": f"192.0.2.1 {ONE}\n".encode()})
    assert hosts.accepts(ONE)
    assert not hosts.accepts(TWO)


def test_what_the_driver_says_counts_alone() -> None:
    told = Reach("192.0.2.1", host_keys=(f"{ONE} a comment",))
    hosts = HostKeys(told, {"known_hosts": f"192.0.2.1 {TWO}\n".encode()}, accept_new=True)
    assert hosts.accepts(ONE)
    assert not hosts.accepts(TWO)


def test_a_new_key_is_accepted_where_that_is_asked_for() -> None:
    files = {"known_hosts": f"192.0.2.1 {ONE}\n".encode()}
    hosts = HostKeys(Reach("192.0.2.1"), files, accept_new=True)
    assert hosts.accepts(TWO)
    hosts.keep_first_seen()
    assert files["known_hosts"] == f"192.0.2.1 {TWO}\n".encode()


@pytest.mark.parametrize(
    ("key", "algorithms"),
    [(ONE, ["ssh-ed25519"]), (new_rsa_key_pair()[1].decode(), ["rsa-sha2-512", "rsa-sha2-256"])],
    ids=["ed25519", "rsa"],
)
def test_a_server_with_several_keys_must_show_the_one_we_know(key: str, algorithms: list[str]) -> None:
    assert HostKeys(Reach("192.0.2.1", host_keys=(key,)), {}).algorithms() == algorithms
    assert HostKeys(Reach("192.0.2.1"), {}).algorithms() is None
