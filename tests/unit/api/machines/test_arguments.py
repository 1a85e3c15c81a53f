"""Arguments of the machine CLI, as upstream passes them."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.machines.drivers.arguments import (
    Download,
    create_arguments,
    driver_flags,
    in_zone,
    remove_arguments,
    spec_fields,
    with_files,
)


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ({}, []),
        ({"ipAddress": "10.0.0.1"}, ["--d-ip-address=10.0.0.1"]),
        ({"sshKeyContents": "x", "cpuCount": 2}, ["--d-cpu-count=2", "--d-ssh-key-contents=x"]),
        ({"size": 2.0, "ratio": 0.5}, ["--d-ratio=0.5", "--d-size=2"]),
        ({"text": "", "nothing": None, "map": {"a": "b"}}, []),
        ({"on": True, "off": False}, ["--d-on"]),
        ({"openPort": ["80", "443", 7]}, ["--d-open-port=443", "--d-open-port=80"]),
        ({"vpcId2Name": "x", "IPAddress": "y"}, ["--d-ipaddress=y", "--d-vpc-id2-name=x"]),
        ({"common": {"labels": {}}, "providerID": "p", "region": "r"}, ["--d-region=r"]),
        ({"text": "a b;$(rm)"}, ["--d-text=a b;$(rm)"]),
    ],
)
def test_each_field_becomes_a_flag_in_order(fields: dict[str, Any], flags: list[str]) -> None:
    assert driver_flags("d", fields, cluster="c") == flags


OWNED = "--amazonec2-tags=kubernetes.io/cluster/c,owned"


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ({}, [OWNED]),
        ({"tags": "a,b"}, ["--amazonec2-tags=a,b,kubernetes.io/cluster/c,owned"]),
        ({"tags": "kubernetes.io/cluster/mine,shared"}, ["--amazonec2-tags=kubernetes.io/cluster/mine,shared"]),
        ({"securityGroup": ["rancher-nodes"]}, ["--amazonec2-security-group=rancher-nodes", OWNED]),
        (
            {"securityGroup": ["mine"]},
            ["--amazonec2-security-group-readonly", "--amazonec2-security-group=mine", OWNED],
        ),
        ({"securityGroup": ["mine"], "securityGroupReadonly": False}, ["--amazonec2-security-group=mine", OWNED]),
        (
            {"securityGroup": ["mine"], "securityGroupReadonly": True},
            ["--amazonec2-security-group-readonly", "--amazonec2-security-group=mine", OWNED],
        ),
    ],
)
def test_amazonec2_tags_its_resources_and_treats_foreign_security_groups_as_readonly(
    fields: dict[str, Any], flags: list[str]
) -> None:
    assert driver_flags("amazonec2", fields, cluster="c") == flags


def test_harvester_gets_the_name_of_the_cluster() -> None:
    assert driver_flags("harvester", {"cpuCount": "4"}, cluster="c") == [
        "--harvester-cluster-name=c",
        "--harvester-cpu-count=4",
    ]


@pytest.mark.parametrize(
    ("driver", "fields", "domain", "expected"),
    [
        ("amazonec2", {"region": "us-east-1"}, "us-east-1a", {"region": "us-east-1", "zone": "a"}),
        ("amazonec2", {}, "us-east-1c", {"zone": "c"}),
        ("amazonec2", {"region": "eu-west-1"}, "b", {"region": "eu-west-1", "zone": "b"}),
        ("amazonec2", {"endpoint": "http://e"}, "us-east-1a", {"endpoint": "http://e", "zone": "us-east-1a"}),
        ("amazonec2", {"zone": "b"}, "us-east-1a", {"zone": "a"}),
        ("amazonec2", {"zone": "b"}, "", {"zone": "b"}),
        ("google", {}, "us-central1-a", {"zone": "us-central1-a"}),
        ("azure", {}, "2", {"availabilityZone": "2"}),
        ("generic", {"ipAddress": "a"}, "somewhere", {"ipAddress": "a"}),
    ],
)
def test_a_failure_domain_sets_the_zone_of_drivers_that_have_one(
    driver: str, fields: dict[str, Any], domain: str, expected: dict[str, Any]
) -> None:
    assert in_zone(driver, fields, domain) == expected


@pytest.mark.parametrize(
    ("fields", "aliases", "remaining", "files"),
    [
        ({"region": "r"}, {"userdata": "userdata"}, {"region": "r"}, {}),
        ({"userdata": ""}, {"userdata": "userdata"}, {"userdata": ""}, {}),
        (
            {"userdata": "#!/bin/sh"},
            {"userdata": "userdata"},
            {"userdata": "/path/to/machine/files/userdata"},
            {"userdata": "#!/bin/sh"},
        ),
        (
            {"sshKeyContents": "KEY"},
            {"sshKeyContents": "sshKeypath"},
            {"sshKeypath": "/path/to/machine/files/id_rsa"},
            {"id_rsa": "KEY\n"},
        ),
        ({"sshKey": "KEY\n"}, {"sshKey": "sshKey"}, {"sshKey": "/path/to/machine/files/id_rsa"}, {"id_rsa": "KEY\n"}),
        (
            {"cloudConfig": "#cloud-config"},
            {"cloudConfig": "cloud-config"},
            {"cloud-config": "/path/to/machine/files/cloud-config"},
            {"cloud-config": "#cloud-config"},
        ),
    ],
)
def test_file_contents_become_files_and_their_flags_paths(
    fields: dict[str, Any], aliases: dict[str, str], remaining: dict[str, Any], files: dict[str, str]
) -> None:
    assert with_files(fields, aliases) == (remaining, files)


def test_create_arguments() -> None:
    arguments = create_arguments(
        download=Download("https://d/x", "abc"),
        namespace="ns",
        state="m-machine-state",
        driver="d",
        instance="m",
        hostname="short",
        flags=["--d-a=1"],
    )
    assert arguments == [
        "--driver-download-url=https://d/x",
        "--driver-hash=abc",
        "--secret-namespace=ns",
        "--secret-name=m-machine-state",
        "create",
        "--driver=d",
        "--custom-install-script=/run/secrets/machine/value",
        "--hostname-override=short",
        "--d-a=1",
        "m",
    ]


def test_remove_arguments() -> None:
    assert remove_arguments(download=Download(), namespace="ns", state="m-machine-state", instance="m") == [
        "--driver-download-url=",
        "--driver-hash=",
        "--secret-namespace=ns",
        "--secret-name=m-machine-state",
        "rm",
        "-y",
        "--update-config",
        "m",
    ]


def test_spec_fields_exclude_those_of_the_provider() -> None:
    assert spec_fields({"spec": {"common": {}, "providerID": "p", "region": "r"}}) == {"region": "r"}
    assert spec_fields({}) == {}
