"""Redaction of objects and text for support bundles."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from herder.api.identity.authn.hashes import new_key
from herder.api.identity.restore_records import SPEC_COPIES
from herder.api.rke.cluster_spec import encode_spec
from herder.app.support.redaction import MAX_TEXT, REDACTED, redacted_object, redacted_text
from tests.support.canaries import canary, secrets_in
from tests.support.kube import Authority

CANARY = canary("in a support bundle")
JWT = f"{'.'.join(['eyJhbGciOiJSUzI1NiIsImtpZCI6'] * 2)}.c2lnbmVkLWJ5LW5vYm9keQ"
CLUSTERS = ("provisioning.cattle.io", "clusters")


def redacted(group: str = CLUSTERS[0], plural: str = CLUSTERS[1], **fields: Any) -> Any:
    found = redacted_object(
        {"apiVersion": f"{group}/v1", "kind": "K", "metadata": {"name": "a"}, **fields}, group, plural
    )
    assert secrets_in(json.dumps(found).encode()) == []
    return found


SECRET_TEXTS = {
    "assignment": f"password={CANARY}",
    "variable": f"AWS_SECRET_ACCESS_KEY={CANARY} FOO=bar",
    "yaml": f"    token: {CANARY}\n",
    "json": json.dumps({"clientSecret": f'{CANARY}"{CANARY}', "a": 1}),
    "json in json": json.dumps(json.dumps({"token": CANARY})),
    "json in json with quotes": json.dumps(json.dumps({"token": f'{CANARY}"{CANARY}\\{CANARY}\n{CANARY}', "a": "b"})),
    "json in json that is cut": json.dumps(json.dumps({"token": CANARY}))[:-4],
    "json in a log": json.dumps({"message": f'{{"password":"{CANARY}"}}'}),
    "quoted with spaces": f"passphrase: '{CANARY} {CANARY}'",
    "flag": f"k3s agent --token {CANARY} --debug",
    "flag with prefix": f"rancher-machine create --amazonec2-secret-key {CANARY}",
    "header": f"Authorization: Bearer {CANARY}",
    "header with another scheme": f"Authorization: Token {CANARY}",
    "bearer": f"sent Bearer {CANARY}",
    "url": f"postgres://user:{CANARY}@db.example.com/herder",
    "url with @ in the password": f"https://user:p@{CANARY}@example.com/",
    "password with a comma": f"password=ab,{CANARY}",
    "flag with a quoted value": f'--password "two {CANARY}" --debug',
    "web token": f"the token is {JWT}!",
    "manager token": f"https://herder.invalid/v3/import/{new_key(os.urandom)}_c-m-1.yaml",
    "kubeconfig": f"users:\n- name: a\n  user:\n    client-key-data: {base64.b64encode(CANARY.encode()).decode()}\n",
}


@pytest.mark.parametrize("text", SECRET_TEXTS.values(), ids=SECRET_TEXTS)
def test_secrets_in_text_are_redacted_by_their_form(text: str) -> None:
    found = redacted_text(text)
    assert secrets_in(found.encode()) == []
    assert REDACTED in found


def test_lines_of_json_remain_valid() -> None:
    line = json.dumps({"token": 'a"b', "password": "c", "message": json.dumps({"secret": "d", "a": 1}), "n": 1})
    found = json.loads(redacted_text(line))
    assert found == {"token": REDACTED, "password": REDACTED, "message": f'{{"secret": "{REDACTED}", "a": 1}}', "n": 1}


@pytest.mark.parametrize(
    "text",
    [f"K10{'a1' * 32}::server:0123456789", "join with abcdef.0123456789abcdef", "AKIAIOSFODNN7EXAMPLE"],
)
def test_join_tokens_and_access_keys_are_redacted(text: str) -> None:
    assert redacted_text(text) in (REDACTED, f"join with {REDACTED}")


def test_private_keys_are_redacted(tmp_path: Path) -> None:
    _, path = Authority(tmp_path).issue("somebody")
    key = path.read_text()
    for text in (
        f"before {key} after",
        key[:100],
        *(base64.b64encode(f"{x}{key}".encode()).decode() for x in ("", "a", "ab")),
    ):
        assert secrets_in(redacted_text(text).encode()) == []
    assert redacted_text(f"before {key}") == f"before {REDACTED}\n"


@pytest.mark.parametrize(
    "text",
    [
        "waiting for plan to be applied",
        "cluster meadow: machine a-1: etcd is not ready; the token was not found",
        "Secret default/a does not exist",
        "https://10.0.0.1:6443/version",
        "secrets: 5 are not readable",
        "2026-11-19T10:00:00Z [INFO ] provisioning done",
    ],
)
def test_ordinary_messages_are_kept(text: str) -> None:
    assert redacted_text(text) == text


@pytest.mark.parametrize(
    "piece", ["a", "-", "eyJ", 'password="', "://", "token ", "-----BEGIN PRIVATE KEY-----", "\\", "a.", "K10"]
)
def test_hostile_text_takes_no_more_than_linear_time(piece: str) -> None:
    def seconds(size: int) -> float:
        text, begun = piece * (size // len(piece)), time.process_time()
        redacted_text(text)
        return time.process_time() - begun

    assert seconds(200_000) < max(12 * seconds(50_000), 0.5)


def test_free_form_configuration_keeps_names_but_no_values() -> None:
    config = {
        "machineGlobalConfig": {"cni": "calico", "token": CANARY, "etcd-arg": [f"a={CANARY}"], "debug": True},
        "machineSelectorConfig": [{"machineLabelSelector": {"matchLabels": {"a": "b"}}, "config": {"x": CANARY}}],
        "chartValues": {"rke2-cilium": {"anything": {"at": CANARY}, "replicas": 31337}},
        "registries": {
            "configs": {"r.example.com": {"auth": {"username": "me", "password": CANARY}, "authConfigSecretName": "s"}},
            "mirrors": {"docker.io": {"endpoint": [f"https://me:{CANARY}@mirror"]}},
        },
        "additionalManifest": f"kind: Secret\nstringData: {{a: {CANARY}}}",
        "machinePools": [{"name": "workers", "quantity": 3, "cloudCredentialSecretName": "cattle-global-data:cc"}],
    }
    env = [{"name": "HTTPS_PROXY", "value": CANARY}, {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]
    found = redacted(spec={"rkeConfig": config, "agentEnvVars": env, "kubernetesVersion": "v1.33.4+k3s1"})["spec"]
    kept = found["rkeConfig"]
    assert kept["machineGlobalConfig"] == {"cni": "calico", "token": REDACTED, "etcd-arg": [REDACTED], "debug": True}
    assert kept["machineSelectorConfig"][0]["machineLabelSelector"] == {"matchLabels": {"a": "b"}}
    assert kept["chartValues"]["rke2-cilium"]["replicas"] == REDACTED
    assert kept["registries"]["configs"]["r.example.com"]["authConfigSecretName"] == "s"
    assert kept["registries"]["mirrors"]["docker.io"]["endpoint"] == [f"https://{REDACTED}@mirror"]
    assert kept["machinePools"] == config["machinePools"]
    assert [each["name"] for each in found["agentEnvVars"]] == ["HTTPS_PROXY", "A"]
    assert found["kubernetesVersion"] == "v1.33.4+k3s1"


def test_documents_in_annotations_are_redacted() -> None:
    spec = {"rkeConfig": {"machineGlobalConfig": {"token": CANARY}}}
    kubeadm = {"apiServer": {"extraArgs": {"profiling": "false", "x": CANARY}, "kubeletExtraArgs": [f"a={CANARY}"]}}
    copied = {name: encode_spec(spec) for name in (*SPEC_COPIES, "herder.io/unknown")}
    configuration = "controlplane.cluster.x-k8s.io/kubeadm-cluster-configuration"
    annotations = {**copied, configuration: json.dumps(kubeadm), "herder.io/broken": '{"a'}
    found = redacted(metadata={"name": "a", "annotations": annotations})["metadata"]["annotations"]
    kept = json.loads(found.pop(configuration))
    assert kept == {"apiServer": {"extraArgs": {"profiling": REDACTED, "x": REDACTED}, "kubeletExtraArgs": [REDACTED]}}
    assert set(found.values()) == {REDACTED}


def test_machine_configurations_keep_harmless_fields() -> None:
    fields = {"region": "eu-west-1", "accessKey": CANARY, "userdata": CANARY, "monitoring": True, "anyField": CANARY}
    config = redacted("rke-machine-config.cattle.io", "amazonec2configs", **fields)
    assert (config["region"], config["anyField"], config["monitoring"]) == ("eu-west-1", REDACTED, True)
    machine = redacted(
        "rke-machine.cattle.io",
        "amazonec2machines",
        spec={"template": {"spec": fields}},
        status={"conditions": [{"type": "Ready", "message": "instance runs"}], "cloudCredentialSecretName": "cc"},
    )
    assert machine["spec"]["template"]["spec"]["region"] == "eu-west-1"
    assert machine["status"]["conditions"][0]["message"] == "instance runs"


def test_annotations_of_others_and_applied_objects_are_redacted() -> None:
    applied = json.dumps({"spec": {"anything": CANARY}})
    annotations = {
        "kubectl.kubernetes.io/last-applied-configuration": applied,
        "objectset.rio.cattle.io/applied": applied,
        "example.com/note": CANARY,
        "plan.herder.io/token": CANARY,
        "plan.herder.io/certificates": "[]",
        "cluster.x-k8s.io/paused": "",
    }
    meta = {"name": "a", "annotations": annotations, "managedFields": [{"manager": "m"}], "labels": {"a": "b"}}
    found = redacted(metadata=meta)["metadata"]
    assert "managedFields" not in found
    assert {key for key, value in found["annotations"].items() if value == REDACTED} == set(list(annotations)[:4])
    assert found["annotations"]["plan.herder.io/certificates"] == "[]"


def test_credentials_and_people_are_listed_without_fields() -> None:
    for plural in ("tokens", "users", "clusterregistrationtokens"):
        found = redacted("management.cattle.io", plural, spec={"a": CANARY}, token=CANARY, status={"command": CANARY})
        assert set(found) == {"apiVersion", "kind", "metadata"}


def test_settings_of_others_are_redacted() -> None:
    assert redacted("management.cattle.io", "settings", value=CANARY)["value"] == REDACTED
    own = redacted("management.cattle.io", "settings", metadata={"name": "history-retention"}, value="24h")
    assert own["value"] == "24h"


def test_snapshots_are_listed_without_the_cluster_that_they_contain() -> None:
    found = redacted("rke.cattle.io", "etcdsnapshots", snapshotFile={"name": "s", "metadata": CANARY, "size": 5})
    assert found["snapshotFile"] == {"name": "s", "metadata": REDACTED, "size": 5}


def test_descriptions_references_and_numbers_are_kept() -> None:
    fields = {
        "description": "mine",
        "subscriptionId": "s",
        "clientSecretName": "a",
        "rotateEncryptionKeys": {"generation": 3},
    }
    assert redacted(spec=fields)["spec"] == fields


def test_long_text_is_cut_after_it_is_redacted() -> None:
    text = "x" * (MAX_TEXT - 20) + f" password={CANARY}"
    found = redacted(status={"message": text * 3})["status"]["message"]
    assert len(found) < MAX_TEXT + 40


def test_deep_objects_end_somewhere() -> None:
    deep: Any = CANARY
    for _ in range(200):
        deep = {"a": [deep]}
    assert REDACTED in json.dumps(redacted(spec=deep))
