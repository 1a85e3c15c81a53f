"""Drivers of the real rancher-machine: the table matches their flags, Herder's drivers accept the same flags, and a
downloaded driver becomes kinds on both engines.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import http.server
import os
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from herder.api.capi.kinds import DEFINITION
from herder.api.machines.crds import CRDS
from herder.api.machines.drivers.flags import Flag, FlagType
from herder.api.machines.drivers.known import DRIVER_LABEL
from herder.api.machines.drivers.registered import default_node_drivers
from herder.api.machines.kinds import DYNAMIC_SCHEMA, NODE_DRIVER, kinds_of
from herder.app.install import install_kinds
from herder.controllers.machines import dynamic_schemas, node_drivers
from herder.engine.client.client import Client
from herder.engine.meta.errors import Invalid, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.performers.find import list_names
from herder.machine.drivers import create_flags
from herder.machine.probing import driver_flags, read_help
from tests.support.capi import none_left, wait_until, wait_until_served
from tests.support.engines import Engine
from tests.support.peers import peer
from tools import driver_flags as tool

EXAMPLE = "docker-machine-driver-example"
KINDS = kinds_of("example")


# --- flags of drivers -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reported_flags() -> dict[str, list[dict[str, Any]]]:
    peer("machine-driver-flags")
    return tool.read_flags({"rancher-machine": peer("rancher-machine")})


def test_the_table_matches_the_drivers(reported_flags: dict[str, list[dict[str, Any]]]) -> None:
    assert tool.TABLE.read_text() == tool.rendered(reported_flags), "run python -m tools.driver_flags"


@pytest.mark.parametrize("driver", ["amazonec2", "azure", "digitalocean", "exoscale", "google", "openstack", "pod"])
def test_help_is_parsed_correctly(driver: str, reported_flags: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    """Except the defaults of lists, which help does not show."""
    output = subprocess.run(
        [peer("rancher-machine"), "create", "--driver", driver, "--help"],
        env={"HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    found = {flag.name: flag for flag in read_help(output) if flag.name.startswith(f"{driver}-")}
    assert set(found) == {flag["name"] for flag in reported_flags[driver]}
    for flag in reported_flags[driver]:
        read = found[flag["name"]]
        assert (read.type, read.env) == (flag["type"], flag["env"]), flag["name"]
        assert read.usage == " ".join(flag["usage"].split()), flag["name"]
        if flag["type"] != FlagType.LIST:
            assert read.default == flag["default"], flag["name"]


@pytest.mark.parametrize("driver", ["amazonec2", "generic"])
def test_herders_drivers_accept_the_same_flags(driver: str, reported_flags: dict[str, list[dict[str, Any]]]) -> None:
    def facts(name: str, type: str, default: Any, env: str) -> tuple[Any, ...]:
        return name, str(type), tuple(default) if isinstance(default, list | tuple) else default, env

    theirs = {facts(each["name"], each["type"], each["default"], each["env"]) for each in reported_flags[driver]}
    ours = {facts(flag.name, flag.type, flag.default, flag.env) for flag in create_flags(driver) or ()}
    assert ours == theirs


# --- a downloaded driver ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    directory = tmp_path_factory.mktemp("published")
    shutil.copy(peer("machine-driver-example"), directory / EXAMPLE)
    with tarfile.open(directory / f"{EXAMPLE}_1.0_linux_amd64.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(directory / EXAMPLE, f"bin/{EXAMPLE}")
    with zipfile.ZipFile(directory / f"{EXAMPLE}.zip", "w") as packed:
        packed.write(directory / EXAMPLE, f"{EXAMPLE}_v1")
    (directory / f"{EXAMPLE}-not.zip").write_bytes(b"not an archive")
    with tarfile.open(directory / f"{EXAMPLE}-without.tar.gz", "w:gz") as archive:
        archive.add(directory / f"{EXAMPLE}-not.zip", "README")
    shutil.copy(peer("machine-driver-flags"), directory / "docker-machine-driver-silent")  # a program that is no driver
    with Published(directory) as server:
        yield server


class Published:
    """A web server on loopback that serves the driver's program."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        handler = functools.partial(Quiet, directory=str(directory))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{name}"

    def digest(self, name: str, algorithm: str = "sha256") -> str:
        return hashlib.new(algorithm, (self.directory / name).read_bytes()).hexdigest()

    def __enter__(self) -> Published:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


async def probed(url: str, checksum: str, program: str = "") -> dict[str, Any]:
    arguments = {"url": url, "checksum": checksum, "name": "example"}
    return await driver_flags(arguments, rancher_machine=program or str(peer("rancher-machine")))


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        (EXAMPLE, "sha256"),
        (EXAMPLE, "md5"),
        (f"{EXAMPLE}_1.0_linux_amd64.tar.gz", "sha512"),
        (f"{EXAMPLE}.zip", "sha1"),
    ],
)
async def test_flags_of_a_downloaded_driver_are_read(published: Published, name: str, algorithm: str) -> None:
    found = await probed(published.url(name), published.digest(name, algorithm))
    assert found["name"] == "example"
    programs = {EXAMPLE: peer("machine-driver-example")}
    theirs = {flag["name"]: flag for flag in tool.read_flags(programs, "example")["example"]}
    ours = {flag["name"]: flag for flag in found["flags"]}
    assert set(ours) == set(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == ["example-network"], "a list with a default"


@pytest.mark.parametrize(
    ("name", "checksum", "problem"),
    [
        (EXAMPLE, "0" * 64, "failed sha256 checksum; correct the NodeDriver's url or checksum"),
        (EXAMPLE, "0" * 10, "has 10 digits; use an MD5, SHA-1, SHA-256 or SHA-512 checksum"),
        (EXAMPLE, "", "spec.checksum is empty"),
        ("nothing", "0" * 64, "Not Found|File not found"),
        (f"{EXAMPLE}-not.zip", None, "does not seem to be in an accepted format; publish a Linux binary"),
        (f"{EXAMPLE}-without.tar.gz", None, f"contains no program named {EXAMPLE.removesuffix('example')}"),
        ("docker-machine-driver-silent", None, "cannot read the flags of driver silent: .*built for this platform"),
    ],
)
async def test_errors_of_a_download_are_reported(
    published: Published, name: str, checksum: str | None, problem: str
) -> None:
    digest = published.digest(name) if checksum is None else checksum
    with pytest.raises(Exception, match=problem):
        await probed(published.url(name), digest)


async def test_a_missing_rancher_machine_is_reported(published: Published) -> None:
    with pytest.raises(
        Exception,
        match="require it; install rancher-machine, or set the setting rancher-machine-path",
    ):
        await probed(published.url(EXAMPLE), published.digest(EXAMPLE), "/nowhere/rancher-machine")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch users")
async def test_downloaded_code_runs_as_user_nobody(published: Published, tmp_path: Path) -> None:
    program = tmp_path / "rancher-machine"
    program.write_text('#!/bin/sh\nexec >&2\nread -r line </etc/shadow && exit 0\necho "I cannot read that"\nexit 1\n')
    program.chmod(0o755)
    with pytest.raises(Exception, match="I cannot read that"):
        await probed(published.url(EXAMPLE), published.digest(EXAMPLE), str(program))


async def test_downloaded_code_runs_in_a_network_of_its_own(published: Published, tmp_path: Path) -> None:
    program = tmp_path / "rancher-machine"
    program.write_text('#!/bin/sh\nPATH=/usr/bin:/bin\necho "network $(readlink /proc/self/ns/net)" >&2\nexit 1\n')
    program.chmod(0o755)
    with pytest.raises(Exception, match=r"network net:\[[0-9]+\]") as raised:
        await probed(published.url(EXAMPLE), published.digest(EXAMPLE), str(program))
    assert os.readlink("/proc/self/ns/net") not in str(raised.value)


# --- its kinds on both engines ----------------------------------------------------------------------------------------


@asynccontextmanager
async def managed(client: Client) -> AsyncIterator[None]:
    manager = Manager(
        client,
        [node_drivers.controller(create_flags), dynamic_schemas.CONTROLLER],
        clock=lambda: datetime.now(UTC),
        entropy=os.urandom,
        performers={
            "driver-flags": functools.partial(driver_flags, rancher_machine=str(peer("rancher-machine"))),
            "list-names": functools.partial(list_names, client),
        },
    )
    running = asyncio.ensure_future(manager.run())
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.fixture
async def provided(client: Client) -> AsyncIterator[Client]:
    """A client with both controllers running; afterwards all kinds are removed, because other tests list them."""
    await install_kinds(client, CRDS)
    try:
        async with managed(client):
            yield client
    finally:
        for driver in (await client.list_all(NODE_DRIVER.resource)).items:
            await client.patch(NODE_DRIVER.resource, _name(driver), {"metadata": {"finalizers": None}})
        for definition in filter(_is_ours, (await client.list_all(DEFINITION.resource)).items):
            await client.delete(DEFINITION.resource, _name(definition))
        await wait_until(client, DEFINITION, "", lambda found: not any(map(_is_ours, found)))


def _is_ours(definition: Object) -> bool:
    labels = definition["metadata"].get("labels") or {}
    return DRIVER_LABEL in labels or _name(definition) in {_name(each) for each in CRDS}


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def example(published: Published, **spec: Any) -> Object:
    described = {"active": True, "url": published.url(EXAMPLE), "checksum": published.digest(EXAMPLE)}
    return {
        "apiVersion": NODE_DRIVER.api_version,
        "kind": NODE_DRIVER.kind,
        "metadata": {
            "name": "nd-example",
            "annotations": {
                "privateCredentialFields": "token",
                "nodedriver.cattle.io/file-to-field-aliases": "sshKeyContents:sshKeyPath",
            },
        },
        "spec": described | spec,
    }


def condition(type_: str, status: str) -> Callable[[list[Object]], bool]:
    def wanted(drivers: list[Object]) -> bool:
        conditions = [each for driver in drivers for each in (driver.get("status") or {}).get("conditions") or ()]
        return any((each["type"], each["status"]) == (type_, status) for each in conditions)

    return wanted


async def test_a_downloaded_driver_becomes_kinds_and_is_removed(
    engine: Engine, provided: Client, published: Published
) -> None:
    client = provided
    await client.create(NODE_DRIVER.resource, example(published))
    await wait_until_served(client, KINDS.config, KINDS.template, KINDS.machine)
    (driver,) = await wait_until(client, NODE_DRIVER, "", condition("Active", "True"))
    assert driver["spec"]["displayName"] == "example", "derived from the name of its program"
    credential = await client.get(DYNAMIC_SCHEMA.resource, "examplecredentialconfig")
    assert credential["spec"]["resourceFields"]["token"]["type"] == "password"

    await client.create(KINDS.config.resource, new_object(KINDS.config, {"token": None}), namespace="default")
    config = await client.get(KINDS.config.resource, "one", namespace="default")
    fields = {name: value for name, value in config.items() if name not in ("apiVersion", "kind", "metadata")}
    assert fields == {"region": "north", "token": None, "sshKeyContents": "", "diskSize": "20", "public": False}

    await client.patch(NODE_DRIVER.resource, "nd-example", {"spec": {"active": False}})
    (inactive,) = await wait_until(client, NODE_DRIVER, "", condition("Active", "False"))
    inactive_condition = next(each for each in inactive["status"]["conditions"] if each["type"] == "Inactive")
    assert inactive_condition["message"].startswith("1 object of its kinds still exists (ExampleConfig default/one)")
    await client.get(KINDS.config.resource, "one", namespace="default")

    await client.delete(KINDS.config.resource, "one", namespace="default")
    await wait_until(client, DEFINITION, "", lambda found: not any(_is_examples(each) for each in found))
    await wait_until(client, NODE_DRIVER, "", condition("Inactive", "True"))

    await client.patch(NODE_DRIVER.resource, "nd-example", {"spec": {"active": True}})
    await wait_until_served(client, KINDS.machine)
    await client.delete(NODE_DRIVER.resource, "nd-example")
    await wait_until(client, NODE_DRIVER, "", none_left)
    await wait_until(client, DEFINITION, "", lambda found: not any(_is_examples(each) for each in found))


def _is_examples(definition: Object) -> bool:
    return (definition["metadata"].get("labels") or {}).get(DRIVER_LABEL) == "example"


def new_object(kind: Kind, fields: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "one"}, **fields}


async def test_kinds_of_a_driver_accept_its_fields(engine: Engine, provided: Client) -> None:
    client = provided
    amazon = kinds_of("amazonec2")
    (driver,) = [each for each in default_node_drivers() if _name(each) == "amazonec2"]
    await client.create(NODE_DRIVER.resource, driver)
    await wait_until_served(client, amazon.config, amazon.template, amazon.machine)

    spec = {"region": "eu-west-1", "rootSize": "20", "securityGroup": ["a", "b"], "monitoring": True, "unknown": "x"}
    template = new_object(amazon.template, {"spec": {"clusterName": "c", "template": {"spec": spec}}})
    stored = await client.create(amazon.template.resource, template, namespace="default")
    del spec["unknown"]
    assert stored["spec"]["template"]["spec"] == spec, "unknown fields are dropped, and absent fields get no default"

    common = {"cloudCredentialSecretName": "cattle-global-data:cc", "labels": {"a": "b"}, "taints": None}
    machine = new_object(amazon.machine, {"spec": {**spec, "common": common, "providerID": None}})
    await client.create(amazon.machine.resource, machine, namespace="default")
    status = {
        "conditions": [{"type": "Ready", "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"}],
        "initialization": {"provisioned": True},
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    }
    await client.patch(amazon.machine.resource, "one", {"status": status}, namespace="default", subresource="status")
    lines = engine.kubectl("get", "amazonec2machines", "-n", "default").stdout.splitlines()
    assert lines[0].split() == ["NAME", "CLUSTER", "CREATED", "READY", "REASON", "AGE"]
    assert lines[1].split()[:2] == ["one", "True"]

    wrong = {**machine, "metadata": {"name": "two"}, "spec": {"rootSize": 20}}
    with pytest.raises(Invalid, match="rootSize"):
        await client.create(amazon.machine.resource, wrong, namespace="default")
    with pytest.raises(StatusError, match=r"spec\.template"):
        await client.create(amazon.template.resource, new_object(amazon.template, {"spec": {}}), namespace="default")
    with pytest.raises(Invalid, match="checksum"):
        await client.create(NODE_DRIVER.resource, {**driver, "metadata": {"name": "x"}, "spec": BAD})


BAD = {"active": True, "url": "https://x", "checksum": "a" * 33}


def test_flag_types_are_derived_from_help() -> None:
    output = (
        "Options:\n   \n"
        '   --x-text "a \\"b\\" c"\t\tsome text [$X_TEXT, $Y]\n'
        "   --x-empty \t\tnothing yet\n"
        "   --x-switch\t\ton or off [$X_SWITCH]\n"
        "   --x-list [--x-list option --x-list option]\tmany\n"
        '   --x-size "-1"\t\tin [GB]\n'
        '   --driver, -d "virtualbox"\tdriver\n'
        "(loader) --x-noise\tsaid by a plugin\n"
    )
    assert read_help(output) == [
        Flag("x-text", "some text", FlagType.STRING, 'a \\"b\\" c', "X_TEXT"),
        Flag("x-empty", "nothing yet"),
        Flag("x-switch", "on or off", FlagType.BOOL, False, "X_SWITCH"),
        Flag("x-list", "many", FlagType.LIST, ()),
        Flag("x-size", "in [GB]", FlagType.INT, -1),
        Flag("driver", "driver", FlagType.STRING, "virtualbox"),
    ]
