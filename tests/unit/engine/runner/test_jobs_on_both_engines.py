"""The same Jobs have the same outcome on both engines."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from herder.engine.meta.kinds import Object
from tests.unit.engine.runner.engines import (
    CONFIG_MAPS,
    JOBS,
    NODES,
    PODS,
    SECRETS,
    SETTINGS,
    Engine,
    finished,
    job,
    terminated,
)


async def run(engine: Engine, wanted: Object, *, seconds: float = 60) -> Object:
    await engine.client.create(JOBS, wanted, namespace="default")
    return await engine.until(JOBS, wanted["metadata"]["name"], finished, seconds=seconds)


async def secret(engine: Engine, name: str, **values: str) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}, "data": data}
    await engine.client.create(SECRETS, body, namespace="default")


def secret_volume(secret_name: str, path: str = "/run/secrets/machine") -> dict[str, Object]:
    return {
        "pod": {"volumes": [{"name": "boot", "secret": {"secretName": secret_name, "defaultMode": 0o400}}]},
        "container": {"volumeMounts": [{"name": "boot", "mountPath": path, "readOnly": True}]},
    }


def merge_overrides(first: dict[str, Object], **more: Object) -> dict[str, Object]:
    return {"pod": {**first["pod"]}, "container": {**first["container"], **more}}


async def test_the_node_is_registered_tainted_and_alive(engine: Engine) -> None:
    node = await engine.client.get(NODES, "herder-runner")
    assert {"key": "herder.io/runner", "value": "true", "effect": "NoSchedule"} in node["spec"]["taints"]
    assert node["metadata"]["labels"]["herder.io/runner"] == "true"
    ready = next(one for one in node["status"]["conditions"] if one["type"] == "Ready")
    assert ready["status"] == "True"
    assert "herder-runner" in await engine.kubectl_in_thread("get", "lease", "-n", "kube-node-lease", "-o", "name")


async def test_a_job_reads_its_secret_at_a_fixed_path_and_completes(engine: Engine) -> None:
    await secret(engine, "boot", value="#!/bin/sh from the secret")
    script = "cd /run/secrets/machine; cat value; id -u; stat -c %a value; printf over >/dev/termination-log"
    wanted = job("reads-secret", script, **merge_overrides(secret_volume("boot"), securityContext={"runAsUser": 1000}))
    done = await run(engine, wanted)
    assert finished(done) == "Complete"
    assert done["status"]["succeeded"] == 1
    assert done["status"].get("failed", 0) == 0
    assert [one["type"] for one in done["status"]["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    (pod,) = await engine.pods_of("reads-secret")
    assert pod["status"]["phase"] == "Succeeded"
    assert pod["metadata"].get("finalizers") is None
    assert terminated(pod)["exitCode"] == 0
    assert terminated(pod)["message"] == "over"
    said = await engine.kubectl_in_thread("logs", pod["metadata"]["name"])
    assert said == "#!/bin/sh from the secret1000\n400\n"


async def test_two_concurrent_jobs_see_different_secrets_at_the_same_path(engine: Engine) -> None:
    await secret(engine, "one", value="first")
    await secret(engine, "two", value="second")
    # Each waits until both have started, which guarantees that they overlap.
    script = "sleep 1; cat /run/secrets/machine/value; ls /run/secrets/machine; touch /tmp/mine; ls /tmp"
    for name in ("one", "two"):
        await engine.client.create(JOBS, job(f"same-path-{name}", script, **secret_volume(name)), namespace="default")
    for name, expected in (("one", "first"), ("two", "second")):
        assert finished(await engine.until(JOBS, f"same-path-{name}", finished)) == "Complete"
        said = await engine.kubectl_in_thread("logs", f"job/same-path-{name}")
        assert said == f"{expected}value\nmine\n"


async def test_env_is_read_from_all_supported_sources(engine: Engine) -> None:
    await secret(engine, "words", PASSWORD="hidden")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plain"}, "data": {"colour": "red"}}
    await engine.client.create(CONFIG_MAPS, body, namespace="default")
    container = {
        "envFrom": [{"secretRef": {"name": "words"}}, {"prefix": "X_", "configMapRef": {"name": "plain"}}],
        "env": [
            {"name": "MY_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "MY_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "words", "key": "PASSWORD"}}},
            {"name": "MAYBE", "valueFrom": {"configMapKeyRef": {"name": "plain", "key": "no", "optional": True}}},
            {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            {"name": "BOTH", "value": "$(KEY)-$$(KEY)-$(NOBODY)"},
        ],
        "resources": {"limits": {"cpu": "1500m", "memory": "256Mi"}},
        "args": [],
    }
    script = 'echo "$PASSWORD $X_colour $MY_NODE $KEY ${MAYBE-unset} $CPUS $BOTH"; test "$MY_POD" = "$HOSTNAME"'
    assert finished(await run(engine, job("env", script, container=container))) == "Complete"
    said = await engine.kubectl_in_thread("logs", "job/env")
    assert said == "hidden red herder-runner hidden unset 1500 hidden-$(KEY)-$(NOBODY)\n"


async def test_the_pods_token_works_against_the_api(engine: Engine) -> None:
    script = (
        "import json, os, ssl, urllib.request\n"
        "place = '/var/run/secrets/kubernetes.io/serviceaccount'\n"
        "context = ssl.create_default_context(cafile=place + '/ca.crt')\n"
        "host, port = os.environ['KUBERNETES_SERVICE_HOST'], os.environ['KUBERNETES_SERVICE_PORT']\n"
        "body = {'apiVersion': 'authentication.k8s.io/v1', 'kind': 'SelfSubjectReview'}\n"
        "request = urllib.request.Request(\n"
        "    f'https://{host}:{port}/apis/authentication.k8s.io/v1/selfsubjectreviews', json.dumps(body).encode(),\n"
        "    {'Authorization': 'Bearer ' + open(place + '/token').read(), 'Content-Type': 'application/json'})\n"
        "print(json.load(urllib.request.urlopen(request, context=context))['status']['userInfo']['username'])\n"
        "print(open(place + '/namespace').read())\n"
    )
    container = {"command": ["/usr/bin/env", "python3", "-c", script]}
    done = await run(engine, job("token", "", container=container))
    said = await engine.kubectl_in_thread("logs", "job/token")
    assert (finished(done), said) == ("Complete", "system:serviceaccount:default:default\ndefault\n")


async def test_a_nonzero_exit_code_fails_the_job_and_is_reported(engine: Engine) -> None:
    container = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    done = await run(engine, job("fails", "echo no such region >&2; exit 7", container=container))
    failed = next(one for one in done["status"]["conditions"] if one["type"] == "Failed")
    assert (failed["reason"], failed["message"]) == (
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )
    assert done["status"]["failed"] == 1
    (pod,) = await engine.pods_of("fails")
    assert pod["status"]["phase"] == "Failed"
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (7, "Error")
    assert terminated(pod)["message"] == "no such region\n"


async def test_a_missing_program_fails_with_a_reason(engine: Engine) -> None:
    container = {"command": ["/no/such/program"]}
    assert finished(await run(engine, job("absent", "", container=container))) == "Failed"
    (pod,) = await engine.pods_of("absent")
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (128, "StartError")
    assert "/no/such/program: No such file or directory" in terminated(pod)["message"]


async def test_failures_are_retried_with_backoff_up_to_the_limit(engine: Engine) -> None:
    done = await run(engine, job("retries", "exit 1", backoffLimit=1), seconds=60)
    assert finished(done) == "Failed"
    assert done["status"]["failed"] == 2
    pods = await engine.pods_of("retries")
    assert len(pods) == 2
    first, second = sorted(pod["metadata"]["creationTimestamp"] for pod in pods)
    assert first < second


async def test_a_failed_container_is_restarted_in_its_pod(engine: Engine) -> None:
    pod = {"restartPolicy": "OnFailure", "volumes": [{"name": "state", "emptyDir": {}}]}
    container = {"volumeMounts": [{"name": "state", "mountPath": "/state"}]}
    script = "echo try; test -e /state/tried && exit 0; touch /state/tried; exit 3"
    done = await run(engine, job("again", script, pod=pod, container=container, backoffLimit=4), seconds=60)
    assert finished(done) == "Complete"
    (found,) = await engine.pods_of("again")
    (status,) = found["status"]["containerStatuses"]
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert await engine.kubectl_in_thread("logs", "--previous", found["metadata"]["name"]) == "try\n"


async def test_the_active_deadline_stops_running_pods(engine: Engine) -> None:
    done = await run(engine, job("deadline", "sleep 600", activeDeadlineSeconds=2))
    failed = next(one for one in done["status"]["conditions"] if one["type"] == "Failed")
    assert (failed["reason"], failed["message"]) == (
        "DeadlineExceeded",
        "Job was active longer than specified deadline",
    )
    assert done["status"].get("active", 0) == 0
    assert done["status"]["failed"] == 1
    async with asyncio.timeout(20):
        while await engine.pods_of("deadline"):
            await asyncio.sleep(0.05)


async def test_a_finished_job_is_deleted_after_its_ttl(engine: Engine) -> None:
    await run(engine, job("short-lived", "true", ttlSecondsAfterFinished=1))
    await engine.gone(JOBS, "short-lived")
    assert await engine.pods_of("short-lived") == []


async def test_a_suspended_job_waits_and_runs_when_resumed(engine: Engine) -> None:
    await engine.client.create(JOBS, job("suspended", "echo ran", suspend=True), namespace="default")
    held = await engine.until(JOBS, "suspended", lambda one: one["status"].get("conditions"))
    assert [(one["type"], one["status"]) for one in held["status"]["conditions"]] == [("Suspended", "True")]
    assert "startTime" not in held["status"]
    assert await engine.pods_of("suspended") == []
    await engine.client.patch(JOBS, "suspended", {"spec": {"suspend": False}}, namespace="default")
    done = await engine.until(JOBS, "suspended", finished)
    conditions = {one["type"]: one["status"] for one in done["status"]["conditions"]}
    assert conditions == {"Suspended": "False", "SuccessCriteriaMet": "True", "Complete": "True"}


async def test_suspending_stops_running_pods_with_sigterm_first(engine: Engine) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    await engine.client.create(JOBS, job("pausing", script), namespace="default")
    await engine.until(JOBS, "pausing", lambda one: one["status"].get("ready") == 1)
    (pod,) = await engine.pods_of("pausing")
    following = asyncio.ensure_future(engine.kubectl_in_thread("logs", "-f", pod["metadata"]["name"]))
    await asyncio.sleep(0.5)
    await engine.client.patch(JOBS, "pausing", {"spec": {"suspend": True}}, namespace="default")
    assert await following == "up\nbye\n"
    await engine.gone(PODS, pod["metadata"]["name"])
    held = await engine.until(JOBS, "pausing", lambda one: not one["status"].get("terminating"))
    assert held["status"].get("active", 0) == 0
    await engine.client.delete(JOBS, "pausing", namespace="default")


async def test_logs_can_be_followed(engine: Engine) -> None:
    script = "for i in 1 2 3 4 5; do echo line $i; sleep 0.3; done; printf 'no end'"
    await engine.client.create(JOBS, job("talks", script), namespace="default")
    await engine.until(JOBS, "talks", lambda one: one["status"].get("ready") == 1)
    said = await engine.kubectl_in_thread("logs", "-f", "job/talks")
    assert said == "".join(f"line {i}\n" for i in range(1, 6)) + "no end"
    await engine.until(JOBS, "talks", finished)
    assert await engine.kubectl_in_thread("logs", "job/talks", "--tail=2") == "line 5\nno end"
    assert await engine.kubectl_in_thread("logs", "job/talks", "--limit-bytes=4") == "line"
    stamped = await engine.kubectl_in_thread("logs", "job/talks", "--timestamps", "--tail=2")
    assert stamped.split()[0].endswith("Z")


async def test_init_containers_run_first_in_order(engine: Engine) -> None:
    mount = [{"name": "shared", "mountPath": "/shared"}]
    init = [
        {"name": name, "image": "x", "command": ["sh", "-c", f"echo {name} >> /shared/list"], "volumeMounts": mount}
        for name in ("a", "b")
    ]
    pod = {"initContainers": init, "volumes": [{"name": "shared", "emptyDir": {}}]}
    wanted = job("init", "cat /shared/list", pod=pod, container={"volumeMounts": mount})
    assert finished(await run(engine, wanted)) == "Complete"
    assert await engine.kubectl_in_thread("logs", "job/init", "-c", "main") == "a\nb\n"


async def test_a_pod_with_an_unknown_image_waits_until_it_is_configured(engine: Engine) -> None:
    wanted = job("mapped", "", container={"image": "example/machine:v1", "command": None, "args": ["mapped"]})
    del wanted["spec"]["template"]["spec"]["containers"][0]["command"]
    await engine.client.create(JOBS, wanted, namespace="default")
    async with asyncio.timeout(30):
        while not (pods := await engine.pods_of("mapped")) or not _waiting(pods[0]).get("message"):
            await asyncio.sleep(0.05)
    assert _waiting(pods[0])["reason"] in {"ErrImagePull", "ImagePullBackOff"}
    assert 'setting "runner-commands"' in _waiting(pods[0])["message"]
    value = '{"example/machine": ["/bin/echo", "the", "machine"]}'
    await engine.client.patch(SETTINGS, "runner-commands", {"value": value})
    assert finished(await engine.until(JOBS, "mapped", finished)) == "Complete"
    assert await engine.kubectl_in_thread("logs", "job/mapped") == "the machine mapped\n"


def _waiting(pod: Object) -> Object:
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    waiting: Object = (statuses[0].get("state") or {}).get("waiting") or {}
    return waiting


async def test_an_indexed_job_passes_each_pod_its_index(engine: Engine) -> None:
    wanted = job("indexed", "echo $JOB_COMPLETION_INDEX", completions=3, parallelism=2, completionMode="Indexed")
    done = await run(engine, wanted)
    assert (done["status"]["succeeded"], done["status"]["completedIndexes"]) == (3, "0-2")
    for pod in await engine.pods_of("indexed"):
        index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
        assert await engine.kubectl_in_thread("logs", pod["metadata"]["name"]) == f"{index}\n"


async def test_a_pod_failure_policy_fails_the_job_at_a_matching_exit_code(engine: Engine) -> None:
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    done = await run(engine, job("hopeless", "exit 42", backoffLimit=5, podFailurePolicy={"rules": [rule]}))
    failed = next(one for one in done["status"]["conditions"] if one["type"] == "Failed")
    assert failed["reason"] == "PodFailurePolicy"
    assert "failed with exit code 42 matching FailJob rule at index 0" in failed["message"]


async def test_deleting_a_job_stops_its_processes_and_removes_its_files(engine: Engine) -> None:
    await secret(engine, "brief", value="x")
    await engine.client.create(JOBS, job("deleted", "sleep 600", **secret_volume("brief")), namespace="default")
    await engine.until(JOBS, "deleted", lambda one: one["status"].get("ready") == 1)
    (pod,) = await engine.pods_of("deleted")
    directory: Path = engine.work_dir / "pods" / pod["metadata"]["uid"]
    assert (directory / "volumes" / "boot" / "value").exists()
    await engine.client.delete(JOBS, "deleted", namespace="default")
    await engine.gone(PODS, pod["metadata"]["name"])
    async with asyncio.timeout(10):
        while directory.exists():
            await asyncio.sleep(0.05)


async def test_pod_events_are_recorded(engine: Engine) -> None:
    await run(engine, job("told", "true"))
    (pod,) = await engine.pods_of("told")
    async with asyncio.timeout(10):
        while True:
            output = await engine.kubectl_in_thread("events", "--for", f"pod/{pod['metadata']['name']}")
            if all(word in output for word in ("Scheduled", "Pulled", "Created", "Started")):
                return
            await asyncio.sleep(0.1)
