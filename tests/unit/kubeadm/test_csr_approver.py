"""Which kubelet certificate requests a server approves, and how it parses hostile ones."""

from __future__ import annotations

import ast
import base64
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import AttributeOID, NameOID

from herder.controllers.planner.distributions.kubeadm.bootstrap_files import TOKEN_GROUP
from herder.kubeadm import csr_approver as approver
from herder.kubeadm.csr_approver import ApiError, Malformed, parse

KEY, OTHER_KEY = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
O, OU, CN = NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.COMMON_NAME  # noqa: E741
SUBJECT = ((O, "system:nodes"), (CN, "system:node:worker-1"))
USAGES = ["digital signature", "client auth"]
BEGIN, END = b"-----BEGIN CERTIFICATE REQUEST-----\n", b"-----END CERTIFICATE REQUEST-----\n"


def request(
    subject: Any = SUBJECT, key: Any = KEY, extensions: tuple[x509.ExtensionType, ...] = (), **options: Any
) -> x509.CertificateSigningRequest:
    names = x509.Name([x509.NameAttribute(kind, value) for kind, value in subject])
    builder = x509.CertificateSigningRequestBuilder().subject_name(options.get("name", names))
    for each in extensions:
        builder = builder.add_extension(each, critical=False)
    if options.get("attribute"):
        builder = builder.add_attribute(AttributeOID.CHALLENGE_PASSWORD, b"x")
    return builder.sign(key, hashes.SHA256())


def pem(certificate_request: x509.CertificateSigningRequest) -> bytes:
    return certificate_request.public_bytes(serialization.Encoding.PEM)


def der(certificate_request: x509.CertificateSigningRequest) -> bytes:
    return certificate_request.public_bytes(serialization.Encoding.DER)


def as_pem(content: bytes) -> bytes:
    return BEGIN + base64.encodebytes(content) + END


def csr(content: bytes | None = None, **spec: Any) -> Any:
    """A pending CertificateSigningRequest of a machine that joins."""
    fields = {
        "signerName": approver.SIGNER,
        "usages": USAGES,
        "username": "system:bootstrap:abcdef",
        "groups": ["system:bootstrappers", TOKEN_GROUP, "system:authenticated"],
        "request": base64.b64encode(pem(request()) if content is None else content).decode(),
    }
    return {"metadata": {"name": "node-csr-1", "resourceVersion": "7"}, "spec": fields | spec, "status": {}}


def renewal(node: str = "worker-1", **spec: Any) -> Any:
    groups = ["system:nodes", "system:authenticated"]
    return csr(**({"username": f"system:node:{node}", "groups": groups} | spec))


class Api:
    """Objects by path. `before_create` acts like another server just before a ConfigMap is created."""

    def __init__(self, *paths: str) -> None:
        self.objects: dict[str, Any] = {path: {} for path in paths}
        self.approvals: list[tuple[str, Any]] = []
        self.before_create: Any = None
        self.failure = ""

    def get(self, path: str) -> Any:
        if self.failure:
            raise ApiError(f"Error from server ({self.failure}): get")
        if path not in self.objects:
            raise ApiError(f'Error from server (NotFound): "{path}" not found')
        return self.objects[path]

    def create(self, path: str, obj: Any) -> None:
        if self.before_create:
            self.before_create()
        object_path = f"{path}/{obj['metadata']['name']}"
        if object_path in self.objects:
            raise ApiError("Error from server (AlreadyExists): it already exists")
        self.objects[object_path] = obj

    def replace(self, path: str, obj: Any) -> None:
        self.approvals.append((path, obj))


def decision_of(request_obj: Any, api: Api | None = None) -> str | None:
    decision = approver.decide(api or Api(), request_obj)
    return decision.type if decision else None


def test_the_program_runs_on_the_oldest_supported_python() -> None:
    tree = ast.parse(Path(approver.__file__).read_text(), feature_version=(3, 6))
    imported = {alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names}
    imported |= {each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    assert {each.split(".")[0] for each in imported} <= set(sys.stdlib_module_names)


def test_the_group_matches_that_of_the_bootstrap_token() -> None:
    assert approver.BOOTSTRAPPERS == TOKEN_GROUP


# --- decisions ------------------------------------------------------------------------------------------------------


def test_the_first_certificate_of_a_name_is_approved_and_recorded() -> None:
    api = Api()
    assert decision_of(csr(), api) == "Approved"
    (recorded,) = api.objects.values()
    assert recorded["metadata"]["name"] == "kubelet-certificate.worker-1"
    assert recorded["immutable"] is True


def test_the_same_key_is_approved_again_and_another_is_denied() -> None:
    api = Api()
    for key, outcome in ((KEY, "Approved"), (OTHER_KEY, "Denied"), (KEY, "Approved")):
        assert decision_of(csr(pem(request(key=key))), api) == outcome


def test_the_name_of_a_node_without_a_record_is_denied() -> None:
    api = Api("/api/v1/nodes/worker-1")
    assert decision_of(csr(), api) == "Denied"
    assert list(api.objects) == ["/api/v1/nodes/worker-1"]


def test_the_name_of_a_node_without_a_record_is_not_issued_after_its_deletion() -> None:
    """An example is the first server, whose certificate kubeadm signs. The approver reads all pages of Nodes."""
    nodes = [{"metadata": {"name": name}} for name in ("a" * 253, "recorded", "worker-1")]
    recorded = approver.record("recorded", "key")
    api = Api()
    api.objects = {
        f"{approver.RECORDS}?labelSelector=app.kubernetes.io%2Fmanaged-by%3Dherder&limit=500": listing(recorded),
        f"{approver.NODES_PATH}?limit=100": listing(*nodes[:1], more="next"),
        f"{approver.NODES_PATH}?limit=100&continue=next": listing(*nodes[1:]),
    }
    approver.record_nodes(api)
    assert decision_of(csr(), api) == "Denied"
    assert [path for path in api.objects if "?" not in path] == [f"{approver.RECORDS}/kubelet-certificate.worker-1"]
    approver.record_nodes(api)  # the record exists now, as if another server had created it


def test_a_name_is_not_issued_again_after_a_restore_of_data_without_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine joined after the snapshot, so neither its record nor its Node exists until its kubelet restarts."""
    names = tmp_path / "reserved-node-names.json"
    monkeypatch.setattr(approver, "RESERVED_NAMES", str(names))
    names.write_text(json.dumps(["server-2", "worker-1", "../../secrets", "a" * 253]))
    api = Api()
    assert decision_of(csr(), api) == "Denied"
    assert decision_of(renewal(), api) == "Approved"
    assert decision_of(csr(pem(request(((O, "system:nodes"), (CN, "system:node:worker-2"))))), api) == "Approved"
    api.objects |= {
        f"{approver.RECORDS}?labelSelector=app.kubernetes.io%2Fmanaged-by%3Dherder&limit=500": listing(),
        f"{approver.NODES_PATH}?limit=100": listing(),
    }
    approver.record_nodes(api)
    recorded = {path.rpartition(".")[2] for path in api.objects if "kubelet-certificate." in path}
    assert recorded == {"server-2", "worker-1", "worker-2"}
    del api.objects[f"{approver.RECORDS}/kubelet-certificate.worker-1"]  # by an administrator, much later
    os.utime(names, (0, 0))
    assert decision_of(csr(), api) == "Approved"


def test_nothing_is_approved_while_the_names_of_a_restore_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tmp_path / "reserved-node-names.json"
    monkeypatch.setattr(approver, "RESERVED_NAMES", str(names))
    names.write_text('["worker')
    with pytest.raises(ValueError, match="Unterminated"):
        decision_of(csr(), Api())


def listing(*items: Any, more: str = "") -> Any:
    return {"metadata": {"resourceVersion": "7", **({"continue": more} if more else {})}, "items": [*items]}


@pytest.mark.parametrize(("key", "outcome"), [(KEY, "Approved"), (OTHER_KEY, "Denied")])
def test_a_concurrent_record_of_another_server_decides(key: Any, outcome: str) -> None:
    api = Api()
    record = approver.record("worker-1", parse(pem(request(key=key))).key)
    api.before_create = lambda: api.objects.update({f"{approver.RECORDS}/kubelet-certificate.worker-1": record})
    assert decision_of(csr(), api) == outcome


@pytest.mark.parametrize("failure", ["InternalError", "Forbidden", "Timeout", "ServiceUnavailable"])
def test_nothing_is_approved_while_the_record_cannot_be_read(failure: str) -> None:
    api = Api()
    api.failure = failure
    with pytest.raises(ApiError):
        decision_of(csr(), api)


def test_a_node_renews_its_own_certificate() -> None:
    api = Api("/api/v1/nodes/worker-1")
    assert decision_of(renewal(), api) == "Approved"
    assert decision_of(renewal(usages=[*USAGES, "key encipherment"]), api) == "Approved"


def test_the_certificate_of_a_removed_node_is_not_renewed() -> None:
    """Its record stays, so that nobody else gets the name."""
    api = Api(f"{approver.RECORDS}/kubelet-certificate.worker-1", "/api/v1/nodes/worker-2")
    assert decision_of(renewal(), api) == "Denied"
    api.failure = "InternalError"
    with pytest.raises(ApiError):
        decision_of(renewal(), api)


def test_a_removed_machine_gets_no_certificate_although_it_registers_its_node_again() -> None:
    api = Api("/api/v1/nodes/worker-1")
    assert decision_of(csr(), api) == "Denied", "its Node has no record"
    path = f"{approver.RECORDS}/kubelet-certificate.worker-1"
    api.objects[path] = approver.record("worker-1", parse(pem(request())).key)
    assert decision_of(renewal(), api) == decision_of(csr(), api) == "Approved"
    api.objects[path]["metadata"]["labels"][approver.REMOVED] = "true"
    assert decision_of(renewal(), api) == decision_of(csr(), api) == "Denied"


@pytest.mark.parametrize(
    "request_obj",
    [
        renewal("worker-2"),
        renewal(groups=["system:authenticated"]),
        csr(groups=["system:bootstrappers", "system:authenticated"]),
        csr(groups=[]),
        csr(username="system:node:worker-1", groups=[]),
        csr(signerName="kubernetes.io/kube-apiserver-client"),
        csr(signerName="kubernetes.io/kubelet-serving"),
        csr(usages=["client auth"]),
        csr(usages=[*USAGES, "server auth"]),
        csr(usages=[]),
        csr(request="%%%"),
        csr(b""),
        csr(pem(request(((O, "system:masters"), (CN, "system:node:worker-1"))))),
        csr(pem(request(((O, "system:nodes"), (O, "system:masters"), (CN, "system:node:worker-1"))))),
        csr(pem(request(((O, "system:nodes"), (CN, "system:node:worker-1"), (CN, "system:node:server-1"))))),
        csr(pem(request(((O, "system:nodes"), (OU, "x"), (CN, "system:node:worker-1"))))),
        csr(pem(request(((CN, "system:node:worker-1"),)))),
        csr(pem(request(((O, "system:nodes"),)))),
        csr(pem(request(((O, "system:nodes"), (CN, "worker-1"))))),
        csr(pem(request(extensions=(x509.SubjectAlternativeName([x509.DNSName("server-1")]),)))),
        csr(pem(request(extensions=(x509.BasicConstraints(ca=True, path_length=None),)))),
        csr(pem(request(attribute=True))),
    ],
)
def test_other_requests_are_ignored(request_obj: Any) -> None:
    api = Api()
    assert decision_of(request_obj, api) is None
    assert not api.objects


HOSTILE = (
    "",
    ".",
    "..",
    "a/../b",
    "a/b",
    "a%2fb",
    "a?b",
    "a#b",
    "A",
    "a b",
    "a\n",
    "a\x00",
    "-a",
    "a-",
    "a..b",
    ".a",
    "ä",
)


@pytest.mark.filterwarnings("ignore:Attribute's length")
@pytest.mark.parametrize("node", [*HOSTILE, "y" * (approver.MAX_NAME + 1)])
def test_an_invalid_node_name_is_ignored(node: str) -> None:
    """It would become part of a path of the API."""
    api = Api()
    common_name = x509.NameAttribute(CN, f"system:node:{node}", _validate=False)
    names = x509.Name([x509.NameAttribute(O, "system:nodes"), common_name])
    assert decision_of(csr(pem(request(name=names))), api) is None
    assert not api.objects


@pytest.mark.parametrize("kind", ["Approved", "Denied", "Failed"])
def test_decided_requests_are_ignored(kind: str) -> None:
    request_obj = csr()
    request_obj["status"] = {"conditions": [{"type": kind, "status": "True"}]}
    assert decision_of(request_obj) is None
    request_obj["status"] = {"certificate": "x"}
    assert decision_of(request_obj) is None


def test_a_decision_is_sent_with_the_resource_version_of_the_request() -> None:
    """The API server rejects an outdated decision by its resourceVersion. Names can have any characters."""
    api, request_obj = Api(), csr()
    request_obj["metadata"]["name"] = "a?b/../c\n"
    approver.handle(api, request_obj)
    ((path, sent),) = api.approvals
    assert path == f"{approver.REQUESTS}/a%3Fb%2F..%2Fc%0A/approval"
    assert sent["metadata"]["resourceVersion"] == "7"
    (condition,) = sent["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Approved", "True", "AutoApproved")


def test_a_failed_request_does_not_stop_others(capsys: pytest.CaptureFixture[str]) -> None:
    api = Api()
    api.failure = "InternalError"
    request_obj = csr()
    request_obj["metadata"]["name"] = "\x1b[2Jname"
    assert approver.attempt(api, request_obj) is False
    api = Api("/api/v1/nodes/worker-1")
    assert approver.attempt(api, renewal()) is True
    assert "\x1b" not in capsys.readouterr().err


# --- PKCS#10 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [KEY, rsa.generate_private_key(65537, 2048)], ids=["ec", "rsa"])
@pytest.mark.parametrize("kind", [_ASN1Type.UTF8String, _ASN1Type.PrintableString])
@pytest.mark.parametrize("subject", [SUBJECT, SUBJECT[::-1]], ids=["organization first", "common name first"])
def test_requests_of_kubelets_and_openssl_are_parsed(key: Any, kind: _ASN1Type, subject: Any) -> None:
    names = x509.Name([x509.NameAttribute(each, value, _type=kind) for each, value in subject])
    names_found = parse(pem(request(key=key, name=names)))
    assert (names_found.organization, names_found.common_name) == ("system:nodes", "system:node:worker-1")


def test_keys_are_compared() -> None:
    assert parse(pem(request())).key == parse(pem(request(((O, "a"), (CN, "b"))))).key
    assert parse(pem(request())).key != parse(pem(request(key=OTHER_KEY))).key


GOOD = pem(request())
OTHER = pem(request(((O, "system:nodes"), (CN, "system:node:server-1"))))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        der(request()),
        GOOD + OTHER,
        GOOD + b"x",
        b"x" + GOOD,
        b"\n" + GOOD,
        GOOD + b"\n",
        GOOD.replace(b"\n", b"\r\n"),
        GOOD.replace(b"CERTIFICATE REQUEST", b"NEW CERTIFICATE REQUEST"),
        GOOD.replace(BEGIN, BEGIN + b"Proc-Type: 4\n\n"),
        GOOD.replace(BEGIN, BEGIN + b"\n"),
        GOOD.replace(BEGIN, BEGIN + b"====\n"),
        GOOD.replace(BEGIN, BEGIN + b"A"),
        GOOD.replace(END, b"AA==\n" + END),
        BEGIN + b"AAAA\n" + GOOD,
        as_pem(der(request()) + b"\x00"),
        as_pem(der(request()) + der(request())),
        as_pem(b"\x30\x80" + der(request())[4:] + b"\x00\x00"),
        as_pem(b"\x30\x83\x00" + der(request())[2:]),
        as_pem(b"\x30\xff" + b"\xff" * 200),
        as_pem(b"\x30"),
        as_pem(b"\x30\x00"),
        BEGIN + b"A" * approver.MAX_REQUEST + b"\n" + END,
        BEGIN + b"A\n" * (approver.MAX_REQUEST // 2 - 100) + b"!" + END,
    ],
)
def test_malformed_requests_are_rejected(content: bytes) -> None:
    with pytest.raises(Malformed):
        parse(content)


def test_mutated_requests_never_parse_to_another_name_than_in_cryptography() -> None:
    """`cryptography` stands for the parser of the signer, which determines the subject of the certificate."""
    rng, original, parsed = random.Random(1), der(request()), 0
    for iteration in range(30_000):
        content = bytearray(original)
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = iteration % len(content) if iteration < 20 * len(content) else rng.randrange(min(len(content), 120))
            change = rng.randrange(4)
            if change == 0:
                content[at] = rng.randrange(256)
            elif change == 1:
                content[at] ^= 1 << rng.randrange(8)
            elif change == 2:
                del content[at : at + rng.randrange(1, 4)]
            else:
                content[at:at] = rng.choice((b"\x00", b"\x80", b"\x30\x00", b"\x31\x00", content[at : at + 8]))
        try:
            names_found = parse(as_pem(bytes(content)))
        except Malformed:
            continue
        parsed += 1
        try:
            known = x509.load_der_x509_csr(bytes(content)).subject
        except ValueError:
            continue  # the API server rejects it earlier
        values = {each.oid: each.value for each in known}
        assert values == {O: names_found.organization, CN: names_found.common_name}
        assert len(list(known)) == 2
    assert parsed > 1000, "signatures and keys can change, so many are parsed"


def test_a_request_to_which_no_condition_can_be_added_is_left_alone() -> None:
    """Near etcd's size limit, the approval would fail forever, and each failure lists all requests again."""
    api, oversize = Api(), csr()
    oversize["metadata"]["annotations"] = {"padding": "x" * approver.MAX_OBJECT}
    assert approver.attempt(api, oversize)
    assert api.approvals == []
    assert api.objects == {}  # the node name stays free
