"""Which host keys are accepted."""

from __future__ import annotations

import pytest

from herder.machine.driver import Reach
from herder.machine.errors import MachineError
from herder.machine.ssh.hosts import HostKeys, fingerprint
from herder.machine.ssh.keys import new_key_pair, new_rsa_key_pair


def host_key() -> str:
    return new_key_pair()[1].decode().strip()


ONE, TWO = host_key(), host_key()


def test_the_first_host_key_is_pinned_after_login() -> None:
    files: dict[str, bytes] = {}
    saved: list[bool] = []
    hosts = HostKeys(Reach("192.0.2.1", 2222), files, remember=lambda: saved.append(True))
    assert hosts.accepts(ONE)
    assert (files, saved) == ({}, [])
    hosts.keep_first_seen()
    assert files == {"known_hosts": f"[192.0.2.1]:2222 {ONE}\n".encode()}  # in the format of known_hosts
    assert saved == [True]


def test_a_changed_key_is_rejected_with_both_fingerprints_and_advice() -> None:
    hosts = HostKeys(Reach("192.0.2.1"), {"known_hosts": f"192.0.2.1 {ONE}\n".encode()})
    assert hosts.accepts(ONE)
    assert not hosts.accepts(TWO)
    message = str(hosts.refused)
    assert fingerprint(ONE) in message
    assert fingerprint(TWO) in message
    assert "--accept-new-host-key" in message


def test_the_address_can_change_but_not_the_key() -> None:
    hosts = HostKeys(Reach("192.0.2.99"), {"known_hosts": f"192.0.2.1 {ONE}\n".encode()})
    assert hosts.accepts(ONE)
    assert not hosts.accepts(TWO)


def test_a_key_reported_by_the_driver_takes_precedence() -> None:
    reach = Reach("192.0.2.1", host_keys=(f"{ONE} a comment",))
    hosts = HostKeys(reach, {"known_hosts": f"192.0.2.1 {TWO}\n".encode()}, accept_new=True)
    assert hosts.accepts(ONE)
    assert not hosts.accepts(TWO)


def test_a_new_key_is_accepted_on_request() -> None:
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
def test_a_server_with_several_keys_must_present_the_pinned_one(key: str, algorithms: list[str]) -> None:
    assert HostKeys(Reach("192.0.2.1", host_keys=(key,)), {}).algorithms() == algorithms
    assert HostKeys(Reach("192.0.2.1"), {}).algorithms() is None


@pytest.mark.parametrize(
    "key", ["\x1b]0;owned\x07 AAAA", "ssh-ed25519", "ssh-ed25519 A", "ssh-ed25519 \x1b[2J", "x\x00 AAAA"]
)
def test_a_host_key_in_the_state_that_is_none_is_an_error(key: str) -> None:
    """Editors of the state Secret choose it."""
    for reach, files in (
        (Reach("192.0.2.1", host_keys=(key,)), {}),
        (Reach("192.0.2.1"), {"known_hosts": f"192.0.2.1 {ONE}\n192.0.2.1 {key}\n".encode()}),
    ):
        with pytest.raises(MachineError, match="host key in the machine state") as raised:
            HostKeys(reach, files)
        assert str(raised.value).isprintable()


def test_a_damaged_known_host_key_can_be_replaced() -> None:
    assert HostKeys(Reach("192.0.2.1"), {"known_hosts": b"192.0.2.1 ssh-ed25519 A\n"}, accept_new=True).accepts(ONE)
