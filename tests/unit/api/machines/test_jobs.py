"""The Job of a machine, its Secrets and its RBAC."""

from __future__ import annotations

import base64
from dataclasses import replace

from herder.api.machines import jobs, names
from herder.api.machines.drivers.arguments import Download
from herder.api.machines.jobs import Host, JobInputs
from herder.api.machines.kinds import kinds_of
from herder.engine.meta.kinds import Object
from herder.engine.runner.pod.environment import expand

KIND = kinds_of("amazonec2").machine
WORK = JobInputs(
    infra={"metadata": {"name": "m", "namespace": "ns", "uid": "u-1"}},
    kind=KIND,
    driver="amazonec2",
    machine_name="machine-m",
    removes=False,
    image="herder/machine:v1",
    pull_policy="Always",
    download=Download(),
    arguments=["create", "m"],
    environment={"AWS_SECRET_KEY": "secret"},
    files={"userdata": "#!/bin/sh"},
    bootstrap_secret="data",
)
REMOVAL = replace(WORK, removes=True, arguments=["rm", "m"], bootstrap_secret="", files={})


def pod_of(work: JobInputs) -> Object:
    pod: Object = jobs.job(work)["spec"]["template"]["spec"]
    return pod


def container_of(work: JobInputs) -> Object:
    (container,) = pod_of(work)["containers"]
    assert isinstance(container, dict)
    return container


def mounts_of(work: JobInputs) -> dict[str, Object]:
    sources = {volume["name"]: volume for volume in pod_of(work)["volumes"]}
    return {mount["mountPath"]: sources[mount["name"]] for mount in container_of(work)["volumeMounts"]}


def test_a_creation_is_tried_once_and_a_removal_four_times() -> None:
    assert jobs.job(WORK)["spec"]["backoffLimit"] == 0
    assert jobs.job(REMOVAL)["spec"]["backoffLimit"] == 3
    assert pod_of(WORK)["restartPolicy"] == "Never"


def test_the_job_and_its_pods_have_labels_of_the_machine() -> None:
    expected = {
        "rke.cattle.io/infra-machine-group": "rke-machine.cattle.io",
        "rke.cattle.io/infra-machine-version": "v1",
        "rke.cattle.io/infra-machine-kind": "Amazonec2Machine",
        "rke.cattle.io/infra-machine-name": "m",
        "rke.cattle.io/capi-machine-name": "machine-m",
    }
    for work, labels in ((WORK, expected), (REMOVAL, expected | {"rke.cattle.io/infra-remove": "true"})):
        job = jobs.job(work)
        assert job["metadata"]["labels"] == job["spec"]["template"]["metadata"]["labels"] == labels
        assert job["metadata"]["name"] == "m-machine-provision"
        assert job["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "rke-machine.cattle.io/v1",
                "kind": "Amazonec2Machine",
                "name": "m",
                "uid": "u-1",
                "controller": True,
            }
        ]


def test_long_names_are_truncated_in_labels() -> None:
    long = replace(WORK, infra={"metadata": {"name": "m" * 80, "namespace": "ns", "uid": "u"}})
    assert all(len(value) <= 63 for value in jobs.labels(long).values())


def test_the_container_runs_unprivileged_with_its_store_and_files() -> None:
    container = container_of(WORK)
    assert container["name"] == "machine"
    assert container["securityContext"] == {"runAsUser": 1000, "runAsGroup": 1000}
    assert {"name": "MACHINE_STORAGE_PATH", "value": "/home/machine/.docker/machine"} in container["env"]
    assert {"name": "HOME", "value": "/home/machine"} in container["env"]
    assert container["envFrom"] == [{"secretRef": {"name": "m-machine-driver-secret"}}]
    assert mounts_of(WORK) == {
        "/home/machine": {"name": "home", "emptyDir": {}},
        "/run/secrets/machine": {"name": "bootstrap", "secret": {"secretName": "data"}},
        "/path/to/machine/files": {"name": "machine-files", "secret": {"secretName": "m-machine-provision"}},
    }
    assert list(mounts_of(REMOVAL)) == ["/home/machine"]


def test_the_container_has_a_memory_limit() -> None:
    """Users choose the endpoint of a driver, and the driver reads whole responses into memory."""
    assert container_of(WORK)["resources"] == {"requests": {"memory": "64Mi"}, "limits": {"memory": "1Gi"}}


def test_no_secret_is_in_the_job_itself() -> None:
    assert "secret-value" not in str(jobs.job(replace(WORK, environment={"AWS_SECRET_KEY": "secret-value"})))
    data = jobs.environment_secret(WORK)["data"]
    assert data == {"AWS_SECRET_KEY": base64.b64encode(b"secret").decode()}


def test_jobs_are_scheduled_to_a_runner_or_to_the_host_of_their_machines() -> None:
    assert "nodeSelector" not in pod_of(WORK)
    any_runner = pod_of(replace(WORK, host=Host("")))
    assert any_runner["nodeSelector"] == {"herder.io/runner": "true"}
    assert any_runner["tolerations"][0]["key"] == "herder.io/runner"
    hosted = replace(WORK, host=Host("node-1", "/var/lib/host/api"))
    assert pod_of(hosted)["nodeSelector"] == {"herder.io/runner": "true", "kubernetes.io/hostname": "node-1"}
    assert mounts_of(hosted)["/run/herder/host"]["hostPath"]["path"] == "/var/lib/host/api"
    assert {"name": "HERDER_HOST_SOCKET", "value": "/run/herder/host/socket"} in container_of(hosted)["env"]


def test_the_role_allows_only_the_state_secret_of_the_machine() -> None:
    assert jobs.role(WORK)["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": ["m-machine-state"],
            "verbs": ["get", "update"],
        }
    ]
    (binding,) = jobs.role_bindings(WORK)
    assert binding["roleRef"]["name"] == binding["subjects"][0]["name"] == "m-machine-provision"


def test_users_cannot_create_the_role_of_a_long_name() -> None:
    infra = {**WORK.infra, "metadata": {**WORK.infra["metadata"], "name": "m" * 60}}
    long = replace(WORK, infra=infra)
    (binding,) = jobs.role_bindings(long)
    name = f"{'m' * 60}-machine-provision"
    assert jobs.role(long)["metadata"]["name"] == binding["roleRef"]["name"] == name
    assert binding["subjects"][0]["name"] == long.job_name != name
    removed = [each for kind, each in jobs.job_dependents("m" * 60) if kind == jobs.ROLE]
    assert removed == [name, long.job_name]


def test_jobs_of_the_pod_driver_get_the_extension_role() -> None:
    own, extension = jobs.role_bindings(replace(WORK, driver="pod"))
    assert extension["metadata"]["name"] == f"{own['metadata']['name']}-extension"
    assert extension["roleRef"]["name"] == "rke2-machine-provisioner"


def test_the_state_secret_has_a_finalizer_and_no_owner() -> None:
    secret = jobs.state_secret(WORK.infra, KIND, "machine-m", "ns/aws")
    assert secret["type"] == "rke.cattle.io/machine-state"
    assert secret["metadata"]["name"] == "m-machine-state"
    assert secret["metadata"]["labels"][names.BACKUP_LABEL] == "true"
    assert secret["metadata"]["finalizers"] == ["machine.herder.io/state"]
    assert "ownerReferences" not in secret["metadata"]


def test_no_argument_is_expanded_with_the_credential() -> None:
    """A user who edits a machine config may use its cloud credential, but must not read it."""
    work = replace(WORK, arguments=["--amazonec2-tags=a,$(AWS_SECRET_KEY)", "$$", "$$(AWS_SECRET_KEY)", "m"])
    assert [expand(argument, work.environment) for argument in container_of(work)["args"]] == work.arguments
