"""Join URLs of machines, and the server that each machine joins."""

from __future__ import annotations

import base64
import json
import zlib

import pytest

from herder.api.rke import names
from herder.api.rke.node.plan import Plan, file
from herder.api.rke.node.plan_secret import encoded, zipped
from herder.controllers.planner.rollout.join import Servers, record_join_url, url_of
from herder.controllers.planner.rollout.machines import PlanEntry
from tests.unit.controllers.planner.objects import ALL, ETCD, WORKER, entry

MEMBERS = {
    "members": [
        {"name": "other", "clientURLs": ["https://10.0.0.8:2379"]},
        {"name": "own-1", "clientURLs": ["https://10.0.0.7:2379", "https://[fd00::1]:2379"]},
    ]
}


def recorded_annotations(machine: PlanEntry) -> dict[str, str]:
    found = record_join_url(machine, 6443)
    return dict(found.patch["metadata"]["annotations"]) if found else {}


def with_member_list(answer: str, name: str = "own-1\n", exit_code: int = 0) -> PlanEntry:
    """The init node, with etcd only, whose agent ran the instructions that find its address."""
    result = {"exitCode": exit_code, "lastSuccessfulRunTime": "Sun Nov 15 06:57:24 UTC 2026"}
    stdouts = {"capture-address": answer, "etcd-name": name}
    outputs = {key: {"stdout": base64.b64encode(value.encode()).decode(), **result} for key, value in stdouts.items()}
    found = entry("a", (ETCD,), init=True)
    found.plan.secret["data"] = {"applied-periodic-output": encoded(zipped(outputs))}
    return found


@pytest.mark.parametrize(
    "answer",
    [
        "\n" * 100_000 + json.dumps(MEMBERS),
        json.dumps({"more": [[]] * 50_000, **MEMBERS}),
        "{" * 100_000,
        '{"members":' + "9" * 5000 + "}",
        '{"members":7}',
        '{"members":{"name":"own-1"}}',
        *(
            json.dumps({"members": [{"name": "own-1", "clientURLs": urls}]})
            for urls in (7, {}, [7], [None], ["http://["], ["https://evil.example:2379"], ["https://a b/"], ["//\x00"])
        ),
    ],
)
def test_an_invalid_address_report_gives_no_join_url(answer: str) -> None:
    assert recorded_annotations(with_member_list(answer)) == {}


@pytest.mark.parametrize(
    ("addresses", "url"),
    [
        ([("InternalIP", "10.0.0.1")], "https://10.0.0.1:6443"),
        ([("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2"), ("ExternalIP", "1.2.3.4")], "https://10.0.0.2:6443"),
        ([("ExternalIP", "1.2.3.4"), ("ExternalIP", "1.2.3.5")], "https://1.2.3.4:6443"),
        ([("InternalIP", "fd00::1")], "https://[fd00::1]:6443"),
        ([("Hostname", "node")], None),
        ([], None),
    ],
)
def test_a_machine_with_a_node_is_joined_by_its_internal_address(
    addresses: list[tuple[str, str]], url: str | None
) -> None:
    status = {
        "nodeInfo": {"kubeletVersion": "v1.33.4"},
        "addresses": [{"type": kind, "address": address} for kind, address in addresses],
    }
    assert recorded_annotations(entry("a", ALL, status=status)).get(names.JOIN_URL) == url


def test_a_machine_without_a_node_has_no_join_url_yet() -> None:
    assert (
        recorded_annotations(entry("a", ALL, status={"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}))
        == {}
    )


def test_known_and_manual_join_urls_are_not_overwritten() -> None:
    known = entry("a", ALL, address="10.0.0.1", join_url="https://10.0.0.1:6443")
    assert recorded_annotations(known) == {}
    by_hand = entry("a", ALL, address="10.0.0.1", annotations={names.JOIN_URL_BY_HAND: "true"})
    assert recorded_annotations(by_hand) == {}


def test_an_etcd_only_init_node_reports_its_address_by_its_members() -> None:
    assert recorded_annotations(with_member_list(f"noise\n{json.dumps(MEMBERS)}\n")) == {
        names.JOIN_URL: "https://10.0.0.7:6443"
    }


@pytest.mark.parametrize(
    ("answer", "name", "exit_code"),
    [
        (json.dumps(MEMBERS), "nobody", 0),
        (json.dumps(MEMBERS), "own-1", 22),
        ("{broken", "own-1", 0),
        ("no answer", "own-1", 0),
    ],
)
def test_an_unusable_member_list_gives_no_join_url(answer: str, name: str, exit_code: int) -> None:
    assert recorded_annotations(with_member_list(answer, name, exit_code)) == {}


def test_the_joined_server_is_read_from_the_plan_if_it_is_not_recorded() -> None:
    config = file("/etc/rancher/k3s/config.yaml.d/50-rancher.yaml", '{"server": "https://10.0.0.9:6443"}')
    assert recorded_annotations(entry("a", (WORKER,), plan=Plan(files=(config,)))) == {
        names.JOINED_TO: "https://10.0.0.9:6443"
    }


# --- workers --------------------------------------------------------------------------------------------------------


def servers(*letters: str) -> list[PlanEntry]:
    return [entry(letter, ALL, join_url=f"https://{letter}:6443") for letter in letters]


def joined_server(machine: PlanEntry, existing: list[PlanEntry]) -> str:
    return Servers(existing).server_for(machine)


def test_workers_are_spread_over_the_control_plane_by_their_uid() -> None:
    for number in range(50):
        worker = entry(f"w{number}", (WORKER,))
        index = zlib.crc32(worker.uid.encode()) * 3 // (2**32 - 1)
        assert joined_server(worker, servers("c", "a", "b")) == f"https://{'abc'[index]}:6443"


def test_a_worker_stays_with_its_server_while_that_exists() -> None:
    worker = entry("w", (WORKER,), annotations={names.JOINED_TO: "https://b:6443"})
    assert joined_server(worker, servers("a", "b", "c")) == "https://b:6443"
    assert joined_server(worker, servers("a", "c")) in ("https://a:6443", "https://c:6443")
    deleting = [entry("b", ALL, join_url="https://b:6443", deleting=True), *servers("a")]
    assert joined_server(worker, deleting) == "https://a:6443"
    assert joined_server(worker, []) == ""


def test_servers_join_the_init_node() -> None:
    first = entry("z", ALL, init=True, join_url="https://z:6443")
    assert joined_server(entry("b", ALL), [first, *servers("a")]) == "https://z:6443"


def test_ipv6_addresses_have_brackets() -> None:
    assert [url_of(address, 9345) for address in ("10.0.0.1", "fd00::1", "node.example")] == [
        "https://10.0.0.1:9345",
        "https://[fd00::1]:9345",
        "https://node.example:9345",
    ]
