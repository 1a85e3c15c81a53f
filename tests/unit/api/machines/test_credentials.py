"""Cloud credentials: references, validation, variables for the driver, and redaction."""

from __future__ import annotations

import base64

import pytest

from herder.api.machines.credentials import (
    CREDENTIAL_TYPE,
    NOT_REDACTED,
    Problem,
    SecretKey,
    check_credential_namespace,
    check_fields,
    credential_key,
    fields_of,
    redact,
    usable,
    variables,
)
from herder.api.machines.drivers.known import usable_credential_fields
from herder.api.machines.drivers.registered import default_node_driver
from herder.engine.meta.kinds import Object


def infra(credential: str | None, status_credential: str = "") -> Object:
    status = {"cloudCredentialSecretName": status_credential} if status_credential else {}
    return {
        "metadata": {"name": "m", "namespace": "ns"},
        "spec": {"common": {"cloudCredentialSecretName": credential}},
        "status": status,
    }


def secret(data: dict[str, str], *, type_: str = CREDENTIAL_TYPE, namespace: str = "ns") -> Object:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"metadata": {"name": "s", "namespace": namespace}, "type": type_, "data": encoded}


@pytest.mark.parametrize(
    ("credential", "status_credential", "expected"),
    [
        (None, "", None),
        ("aws", "", SecretKey("ns", "aws")),
        ("cattle-global-data:cc-abc", "", SecretKey("cattle-global-data", "cc-abc")),
        ("ns:aws", "", SecretKey("ns", "aws")),
        ("new", "old", SecretKey("ns", "new")),
        ("", "old", None),  # status is ignored: a user who may write it could choose any credential
    ],
)
def test_credential_reference_of_a_machine(
    credential: str | None, status_credential: str, expected: SecretKey | None
) -> None:
    assert credential_key(infra(credential, status_credential)) == expected


def test_secrets_of_other_namespaces_are_rejected() -> None:
    check_credential_namespace(SecretKey("cattle-global-data", "cc-abc"), infra(""))
    check_credential_namespace(SecretKey("ns", "aws"), infra(""))
    with pytest.raises(Problem, match=r"Secret other/aws is in another namespace; name one of namespace ns, or"):
        check_credential_namespace(SecretKey("other", "aws"), infra(""))


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        ({"amazonec2credentialConfig-accessKey": "a"}, {"accessKey": "a"}),
        ({"accessKey": "a", "secretKey": "b"}, {"accessKey": "a", "secretKey": "b"}),
        ({"azurecredentialConfig-clientId": "x", "accessKey": "a"}, {"accessKey": "a"}),
        ({}, {}),
    ],
)
def test_keys_of_a_credential_may_have_the_driver_prefix(data: dict[str, str], fields: dict[str, str]) -> None:
    assert fields_of(secret(data), "amazonec2") == fields


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (secret({}, type_="Opaque"), "Secret ns/s: its type is Opaque; a cloud credential has type provisioning"),
        (secret({}, type_="kubernetes.io/tls", namespace="cattle-global-data"), "its type is kubernetes.io/tls"),
        ({**secret({}), "data": {"key": "/w=="}}, 'Secret ns/s: key "key" is not valid UTF-8 text'),
    ],
)
def test_other_secrets_are_rejected_as_credentials(found: Object, problem: str) -> None:
    with pytest.raises(Problem, match=problem):
        fields_of(found, "amazonec2")


def test_credentials_of_rancher_need_no_type() -> None:
    assert fields_of(secret({"accessKey": "a"}, type_="Opaque", namespace="cattle-global-data"), "d") == {
        "accessKey": "a"
    }


def test_a_missing_field_is_reported_with_the_key_to_add() -> None:
    check_fields(SecretKey("ns", "s"), {"accessKey": "a"}, ["accessKey"], "amazonec2")
    expected = 'Secret ns/s: driver amazonec2 requires field "secretKey"; add key amazonec2credentialConfig-secretKey'
    with pytest.raises(Problem) as caught:
        check_fields(SecretKey("ns", "s"), {"accessKey": "a", "secretKey": ""}, ["accessKey", "secretKey"], "amazonec2")
    assert str(caught.value) == expected


def test_undeclared_fields_are_not_passed_to_the_driver() -> None:
    driver = default_node_driver("amazonec2")
    assert driver is not None
    known = usable_credential_fields(driver)
    fields = {
        "accessKey": "a",
        "defaultRegion": "r",
        "access_key": "",
        "configFile": "/f",
        "ec2MetadataDisabled": "false",
    }
    assert usable(SecretKey("ns", "s"), fields, known, "amazonec2", strict=False) == {
        "accessKey": "a",
        "defaultRegion": "r",
    }
    with pytest.raises(Problem, match=r'Secret ns/s: field "access_key" is unknown to driver amazonec2'):
        usable(SecretKey("ns", "s"), fields, known, "amazonec2", strict=True)


@pytest.mark.parametrize(
    ("driver", "field", "variable"),
    [
        ("amazonec2", "accessKey", "AWS_ACCESS_KEY"),
        ("digitalocean", "accessToken", "DIGITALOCEAN_ACCESS_TOKEN"),
        ("openstack", "password", "OS_PASSWORD"),
        ("vmwarevsphere", "vcenterPort", "VSPHERE_VCENTER_PORT"),
        ("harvester", "kubeconfigContent", "HARVESTER_KUBECONFIG_CONTENT"),
    ],
)
def test_fields_are_passed_to_the_driver_as_variables(driver: str, field: str, variable: str) -> None:
    assert variables(driver, {field: "x"}) == {variable: "x"}


@pytest.mark.parametrize(
    ("text", "secrets", "known", "expected"),
    [
        ("the key is s3cr3t-key.", ["s3cr3t-key"], [], "the key is ***."),
        ("port 443", ["443"], [], "port 443"),
        ("longer-secret and secret-x", ["secret-x", "longer-secret"], [], "*** and ***"),
        ("no region eu-central-1", ["eu-central-1"], ["eu-central-1"], "no region eu-central-1"),
        ("line: abcdefghijklmnop", ["first line\nabcdefghijklmnop\n"], [], "line: ***"),
        ("trimmed-secret!", ["trimmed-secret\n"], [], "***!"),
    ],
)
def test_secrets_are_redacted(text: str, secrets: list[str], known: list[str], expected: str) -> None:
    assert redact(text, secrets, known=known) == expected


LINES = [f"{number:016d}" for number in range(60_000)]


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("x" * 4_000, ["\n".join(LINES)]),
        ("x" * 4_000, LINES[:300]),
        ("x" * 4_000, ["\n" * 1_000_000]),
        ("x" * 256_000, LINES[:150]),
    ],
)
def test_a_text_is_hidden_if_there_is_too_much_to_redact(text: str, secrets: list[str]) -> None:
    """Editors of a namespace can write these Secrets. Each value is searched in the whole text, on the event loop."""
    assert redact(text, secrets) == NOT_REDACTED


def test_the_lines_of_a_private_key_are_redacted_in_a_long_log() -> None:
    key = [f"{number:064d}" for number in range(60)]
    log = "line of the log\n" * 16_000
    assert redact(f"{log}{key[7]}\n{log[-100:]}", ["\n".join(key)]) == f"{log}***\n{log[-100:]}"
