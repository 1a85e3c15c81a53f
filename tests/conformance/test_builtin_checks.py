"""Validation of built-in kinds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.objects import deployment, job, pod, service
from tests.support.api import Api

JOBS, CRONJOBS = "batch/v1/jobs", "batch/v1/cronjobs"
LEASES = "coordination.k8s.io/v1/leases"
DRY = "?dryRun=All"


async def assert_rejected(api: Api, resource: str, obj: Any, cause: str) -> None:
    answer = await api.post(api.at(resource) + DRY, obj)
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
    assert cause in answer.message


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"containers": []}, "spec.containers: Required value"),
        ({"containers": [{"name": "A", "image": "x"}]}, 'spec.containers[0].name: Invalid value: "A": '),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image: Required value"),
        (
            {"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "x"}]},
            'spec.containers[1].name: Duplicate value: "a"',
        ),
        (
            {"containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 0}]}]},
            "spec.containers[0].ports[0].containerPort: ",
        ),
        (
            {"containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 70000}]}]},
            "must be between 1 and 65535, inclusive",
        ),
        (
            {"containers": [{"name": "a", "image": "x", "env": [{"name": ""}]}]},
            "spec.containers[0].env[0].name: Required value",
        ),
        (
            {"containers": [{"name": "a", "image": "x", "imagePullPolicy": "Maybe"}]},
            'spec.containers[0].imagePullPolicy: Unsupported value: "Maybe"',
        ),
        (
            {"containers": [{"name": "a", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            'spec.containers[0].volumeMounts[0].name: Not found: "v"',
        ),
        (
            {
                "containers": [
                    {"name": "a", "image": "x", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}
                ]
            },
            "must be less than or equal to cpu limit of 1",
        ),
        ({"restartPolicy": "Sometimes"}, 'spec.restartPolicy: Unsupported value: "Sometimes"'),
        ({"dnsPolicy": "Guess"}, 'spec.dnsPolicy: Unsupported value: "Guess"'),
        ({"volumes": [{"name": "V", "emptyDir": {}}]}, 'spec.volumes[0].name: Invalid value: "V": '),
        (
            {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]},
            "may not specify more than 1 volume type",
        ),
        ({"nodeSelector": {"a b": "c"}}, 'spec.nodeSelector: Invalid value: "a b"'),
        (
            {"activeDeadlineSeconds": 0},
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ),
        ({"hostname": "A_B"}, 'spec.hostname: Invalid value: "A_B"'),
        ({"tolerations": [{"operator": "Maybe"}]}, 'spec.tolerations[0].operator: Unsupported value: "Maybe"'),
    ],
)
async def test_pods_are_validated(api: Api, change: Any, cause: str) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    await assert_rejected(api, "pods", pod("a", **change), cause)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"selector": {"matchLabels": {"app": "other"}}}, "spec.template.metadata.labels: Invalid value: "),
        ({"selector": {}}, "spec.selector: Invalid value: {}: empty selector is invalid for deployment"),
        ({"replicas": -1}, "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        ({"strategy": {"type": "Jump"}}, 'spec.strategy: Unsupported value: {"Type":"Jump","RollingUpdate":null}'),
        (
            {"strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 0}}},
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
        ),
        ({"minReadySeconds": -1}, "spec.minReadySeconds: Invalid value: -1"),
        (
            {"progressDeadlineSeconds": 0},
            "spec.progressDeadlineSeconds: Invalid value: 0: must be greater than minReadySeconds",
        ),
    ],
)
async def test_deployments_are_validated(api: Api, change: Any, cause: str) -> None:
    await assert_rejected(api, "apps/v1/deployments", deployment("a", **change), cause)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"parallelism": -1}, "spec.parallelism: Invalid value: -1: must be greater than or equal to 0"),
        ({"backoffLimit": -1}, "spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0"),
        ({"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished: Invalid value: -1"),
        ({"completionMode": "Half"}, 'spec.completionMode: Unsupported value: "Half"'),
        (
            {"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}},
            'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"',
        ),
        (
            {"template": {"spec": {"restartPolicy": "Always", "containers": [{"name": "a", "image": "b"}]}}},
            'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"',
        ),
        ({"selector": {"matchLabels": {"a": "b"}}}, "spec.selector: Invalid value: "),
    ],
)
async def test_jobs_are_validated(api: Api, change: Any, cause: str) -> None:
    await assert_rejected(api, JOBS, job("a", **change), cause)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"schedule": "often"}, 'spec.schedule: Invalid value: "often": expected exactly 5 fields, found 1: [often]'),
        ({"schedule": ""}, "spec.schedule: Required value"),
        ({"concurrencyPolicy": "Maybe"}, 'spec.concurrencyPolicy: Unsupported value: "Maybe"'),
        ({"timeZone": "Mars/Base"}, 'spec.timeZone: Invalid value: "Mars/Base": unknown time zone Mars/Base'),
        ({"startingDeadlineSeconds": -1}, "spec.startingDeadlineSeconds: Invalid value: -1"),
    ],
)
async def test_cron_jobs_are_validated(api: Api, change: Any, cause: str) -> None:
    spec = {"schedule": "* * * * *", "jobTemplate": {"spec": job("a")["spec"]}} | change
    await assert_rejected(api, CRONJOBS, {"metadata": {"name": "a"}, "spec": spec}, cause)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"ports": []}, "spec.ports: Required value"),
        ({"ports": [{"port": 0}]}, "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"),
        ({"ports": [{"port": 1}, {"port": 2}]}, "spec.ports[0].name: Required value"),
        ({"ports": [{"port": 1, "protocol": "ICMP"}]}, 'spec.ports[0].protocol: Unsupported value: "ICMP"'),
        ({"type": "Magic"}, 'spec.type: Unsupported value: "Magic"'),
        ({"type": "ExternalName"}, "spec.externalName: Required value"),
        ({"clusterIP": "nonsense"}, 'spec.clusterIPs[0]: Invalid value: "nonsense"'),
        ({"sessionAffinity": "Sticky"}, 'spec.sessionAffinity: Unsupported value: "Sticky"'),
        ({"externalIPs": ["x"]}, 'spec.externalIPs[0]: Invalid value: "x"'),
    ],
)
async def test_services_are_validated(api: Api, change: Any, cause: str) -> None:
    await assert_rejected(api, "services", service("a", **change), cause)


async def test_service_names_must_be_dns_labels(api: Api) -> None:
    await assert_rejected(api, "services", service("a.b"), 'metadata.name: Invalid value: "a.b": ')


@pytest.mark.parametrize(
    ("kind", "data", "cause"),
    [
        ("kubernetes.io/tls", {}, "data[tls.crt]: Required value"),
        ("kubernetes.io/dockerconfigjson", {}, "data[.dockerconfigjson]: Required value"),
        ("kubernetes.io/dockerconfigjson", {".dockerconfigjson": "nonsense"}, "data[.dockerconfigjson]: Invalid value"),
        ("kubernetes.io/ssh-auth", {}, "data[ssh-privatekey]: Required value"),
        ("kubernetes.io/basic-auth", {}, "data[username]: Required value"),
        ("Opaque", {"a b": "c"}, 'data[a b]: Invalid value: "a b": a valid config key must consist of'),
    ],
)
async def test_secrets_are_validated(api: Api, kind: str, data: Any, cause: str) -> None:
    body = {"metadata": {"name": "a"}, "type": kind, "stringData": data}
    await assert_rejected(api, "secrets", body, cause)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ({"data": {"a b": "c"}}, 'data[a b]: Invalid value: "a b": a valid config key must consist of'),
        ({"data": {"..": "c"}}, 'data[..]: Invalid value: ".."'),
        ({"data": {"x": "1"}, "binaryData": {"x": "MQ=="}}, 'data[x]: Invalid value: "x": duplicate of key present in'),
    ],
)
async def test_config_maps_are_validated(api: Api, data: Any, cause: str) -> None:
    await assert_rejected(api, "configmaps", {"metadata": {"name": "a"}} | data, cause)


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({"leaseDurationSeconds": 0}, "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"),
        ({"leaseTransitions": -1}, "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0"),
    ],
)
async def test_leases_are_validated(api: Api, spec: Any, cause: str) -> None:
    await assert_rejected(api, LEASES, {"metadata": {"name": "a"}, "spec": spec}, cause)


async def test_ingresses_are_validated(api: Api) -> None:
    rule = {"host": "a..b", "http": {"paths": [{"path": "x", "pathType": "Prefix", "backend": {}}]}}
    body = {"metadata": {"name": "a"}, "spec": {"rules": [rule]}}
    await assert_rejected(api, "networking.k8s.io/v1/ingresses", body, 'spec.rules[0].host: Invalid value: "a..b"')
