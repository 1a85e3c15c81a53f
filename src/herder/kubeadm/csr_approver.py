"""Approve client certificates of kubelets on the servers of a kubeadm cluster.

Every machine of the cluster holds the same bootstrap token. kube-controller-manager approves a certificate of any node
name for it, so root on one worker could become a control plane node. Its approving controller is therefore disabled
(see run.sh), and this program approves instead:

- a renewal, which a node requests for its own name with the certificate it has, while its Node exists. A certificate
  cannot be revoked, but that of a removed machine is not renewed: the manager marks the record of its name, because the
  machine can register its Node again;
- the first certificate of a node name. A ConfigMap records the name and its public key before the approval. A request
  for the same name is denied unless it has the same key. Names of Nodes that have another certificate are recorded too.
  After a restore, the records are those of the snapshot. So the manager names the Nodes of all machines in a file, and
  the names in it are issued to no key that has no record.

The program runs on every server with the machine's Python (3.6 or newer) and kubectl. Servers need no leader: of two
that create the ConfigMap of one name, the API server accepts one.
"""

import argparse
import base64
import binascii
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, NamedTuple, Optional, Set, Tuple
from urllib.parse import quote, urlencode

SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
BOOTSTRAPPERS = "system:bootstrappers:kubeadm:default-node-token"
NODES = "system:nodes"
NODE_PREFIX = "system:node:"
USAGES = (
    frozenset(("digital signature", "client auth")),
    frozenset(("digital signature", "client auth", "key encipherment")),  # of RSA keys
)
DECIDED = ("Approved", "Denied", "Failed")

RESERVED_NAMES = "/etc/rancher/kubeadm/reserved-node-names.json"
RESERVED_SECONDS = 24 * 3600  # until then, the names are recorded in the restored cluster

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
RECORDS = "/api/v1/namespaces/kube-system/configmaps"
RECORD_PREFIX = "kubelet-certificate."
RECORD_LABEL, RECORD_OWNER = "app.kubernetes.io/managed-by", "herder"
REMOVED = "kubeadm.herder.io/removed"  # label of the record of a machine that the manager has deleted
NODES_PATH = "/api/v1/nodes"
MAX_NAME = 253 - len(RECORD_PREFIX)
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NODE_NAME = re.compile(LABEL + r"(\." + LABEL + ")*")

MAX_REQUEST = 16 * 1024  # bytes of PEM; a request with an RSA key of 4096 bits has 1.7 KiB
MAX_OBJECT = 64 * 1024  # characters of a CertificateSigningRequest with its metadata; one of a kubelet has 4 KiB
MAX_EVENT = 4 * 1024 * 1024  # characters of a watch event; etcd refuses objects of more than 1.5 MiB
PAGE, PAGE_OF_NODES = 20, 100
WATCH_SECONDS = 300
PAUSE_SECONDS = 2.0

Object = Dict[str, Any]


# --- PKCS#10 --------------------------------------------------------------------------------------------------------

SEQUENCE, SET, INTEGER, BIT_STRING, OBJECT_ID, ATTRIBUTES = 0x30, 0x31, 0x02, 0x03, 0x06, 0xA0
STRINGS = (0x0C, 0x13)  # UTF8String and PrintableString
COMMON_NAME, ORGANIZATION = b"\x55\x04\x03", b"\x55\x04\x0a"
PEM = re.compile(
    rb"-----BEGIN CERTIFICATE REQUEST-----\n"
    rb"((?:[A-Za-z0-9+/]+\n)*[A-Za-z0-9+/]+={0,2}\n)"
    rb"-----END CERTIFICATE REQUEST-----\n?"
)


class Request(NamedTuple):
    organization: str
    common_name: str
    key: str  # SHA-256 of the SubjectPublicKeyInfo


class Malformed(ValueError):
    """Not a certificate request as kubelets write it."""


def parse(pem: bytes) -> Request:
    """Read a certificate request that has a subject of one organization and one common name, and no attributes.

    The signer parses the request again, with Go's crypto/x509. To never read another subject than the signer does,
    this accepts only the form that kubelets write: one PEM block with nothing around it, minimal DER lengths, no
    element more or less. SANs are attributes, so there are none.
    """
    if len(pem) > MAX_REQUEST:
        raise Malformed("too large")
    block = PEM.fullmatch(pem)
    if block is None:
        raise Malformed("not one PEM block")
    try:
        der = base64.b64decode(block.group(1).replace(b"\n", b""), validate=True)
    except binascii.Error:
        raise Malformed("not Base64") from None
    info, rest = element(only(der, SEQUENCE), SEQUENCE)
    _, rest = element(rest, SEQUENCE)  # the API server verifies the signature when the object is created
    only(rest, BIT_STRING)
    version, rest = element(info, INTEGER)
    subject, rest = element(rest, SEQUENCE)
    _, attributes = element(rest, SEQUENCE)
    key = rest[: len(rest) - len(attributes)]
    if version != b"\x00" or only(attributes, ATTRIBUTES):
        raise Malformed("another version, or attributes")
    names = distinguished_name(subject)
    if set(names) != {ORGANIZATION, COMMON_NAME}:
        raise Malformed("another subject")
    return Request(names[ORGANIZATION], names[COMMON_NAME], hashlib.sha256(key).hexdigest())


def distinguished_name(rest: bytes) -> Dict[bytes, str]:
    names = {}  # type: Dict[bytes, str]
    while rest:
        relative, rest = element(rest, SET)
        kind, value = element(only(relative, SEQUENCE), OBJECT_ID)
        if kind in names or not value or value[0] not in STRINGS:
            raise Malformed("a name twice, or not a string")
        try:
            names[kind] = only(value, value[0]).decode("ascii")
        except UnicodeDecodeError:
            raise Malformed("not ASCII") from None
    return names


def element(data: bytes, tag: int) -> Tuple[bytes, bytes]:
    """The content of the first DER element, which must have this tag, and the bytes that follow it."""
    if len(data) < 2 or data[0] != tag:
        raise Malformed("another element")
    length, start = data[1], 2
    if length >= 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
        minimum = {3: 0x80, 4: 0x100}.get(start)  # one or two bytes of length, as few as possible
        if minimum is None or length < minimum:
            raise Malformed("length")
    if len(data) < start + length:
        raise Malformed("too short")
    return data[start : start + length], data[start + length :]


def only(data: bytes, tag: int) -> bytes:
    content, rest = element(data, tag)
    if rest:
        raise Malformed("more than one element")
    return content


# --- the API --------------------------------------------------------------------------------------------------------


class ApiError(OSError):
    """A request that kubectl reports as failed, with the reason of the API server's Status if it answered."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem[:500])
        found = re.search(r"^Error from server \((\w+)\)", problem, re.MULTILINE)
        self.reason = found.group(1) if found else ""


class Kubectl:
    """Send single requests with the administrator's kubeconfig of this server."""

    def __init__(self, kubeconfig: str) -> None:
        self._command = ["kubectl", "--kubeconfig", kubeconfig]

    def get(self, path: str) -> Object:
        return self._run(["--request-timeout=60s", "get", "--raw", path])

    def create(self, path: str, obj: Object) -> None:
        self._run(["--request-timeout=60s", "create", "--raw", path, "-f", "-"], obj)

    def replace(self, path: str, obj: Object) -> None:
        self._run(["--request-timeout=60s", "replace", "--raw", path, "-f", "-"], obj)

    def watch(self, path: str) -> Iterator[Object]:
        process = subprocess.Popen([*self._command, "get", "--raw", path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            while True:
                line = process.stdout.readline(MAX_EVENT)
                if not line:
                    return
                yield json.loads(line.decode())
        finally:
            process.kill()
            process.stdout.close()
            process.wait()

    def _run(self, words: Any, obj: Optional[Object] = None) -> Object:
        process = subprocess.Popen(
            [*self._command, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, problem = process.communicate(json.dumps(obj).encode() if obj is not None else b"")
        if process.returncode:
            raise ApiError(problem.decode(errors="replace").strip())
        return dict(json.loads(out.decode()))


# --- decisions ------------------------------------------------------------------------------------------------------


class Decision(NamedTuple):
    """A condition of a CertificateSigningRequest."""

    type: str
    reason: str
    message: str


def decide(api: Any, csr: Object) -> Optional[Decision]:
    """None for requests that this program neither approves nor denies; an administrator may."""
    spec, status = csr["spec"], csr.get("status") or {}
    if status.get("certificate") or any(each["type"] in DECIDED for each in status.get("conditions") or []):
        return None
    request = kubelet_request(spec)
    # To one that is almost as large as etcd allows, no condition can be added: each attempt would list all again.
    if request is None or len(json.dumps(csr)) > MAX_OBJECT:
        return None
    node, groups = request.common_name[len(NODE_PREFIX) :], spec.get("groups") or []
    is_renewal = spec.get("username") == request.common_name and NODES in groups
    if is_renewal and is_removed(find(api, f"{RECORDS}/{RECORD_PREFIX}{node}")):
        return Decision("Denied", "MachineRemoved", f"The machine of Node {node} was removed from the cluster.")
    if is_renewal:
        # After a restore, the Nodes of machines that joined since the snapshot do not exist until they register again.
        if find(api, f"{NODES_PATH}/{node}") is None and node not in reserved_names():
            return Decision(
                "Denied",
                "NodeRemoved",
                f"Node {node} does not exist, so its certificate is not renewed; if the machine belongs to the "
                "cluster, restart its kubelet, which registers the Node.",
            )
        return Decision("Approved", "AutoApproved", "Auto approving self kubelet client certificate.")
    if BOOTSTRAPPERS not in groups:
        return None
    if claim(api, node, request.key):
        return Decision("Approved", "AutoApproved", "Auto approving the first kubelet client certificate of this name.")
    return Decision(
        "Denied",
        "NodeNameIssued",
        f"Node name {node} was issued to another key; give this machine another name. If it replaces a machine that is "
        f"gone and that you trusted, delete Node {node}, ConfigMap kube-system/{RECORD_PREFIX}{node} and this request.",
    )


def kubelet_request(spec: Object) -> Optional[Request]:
    """Parse the request and check it as kube-controller-manager does (ValidateKubeletClientCSR)."""
    if spec.get("signerName") != SIGNER or frozenset(spec.get("usages") or ()) not in USAGES:
        return None
    encoded = spec.get("request") or ""
    if len(encoded) > 2 * MAX_REQUEST:
        return None
    try:
        request = parse(base64.b64decode(encoded, validate=True))
    except ValueError:
        return None
    if request.organization != NODES or not request.common_name.startswith(NODE_PREFIX):
        return None
    # The name becomes part of paths of the API, so it must be one.
    node = request.common_name[len(NODE_PREFIX) :]
    return request if len(node) <= MAX_NAME and NODE_NAME.fullmatch(node) else None


def claim(api: Any, node: str, key: str) -> bool:
    """Record the name for the key; False if the name is another key's, or of a Node or machine without a record."""
    recorded = find(api, f"{RECORDS}/{RECORD_PREFIX}{node}")
    if recorded is None:
        if node in reserved_names() or find(api, f"{NODES_PATH}/{node}") is not None:
            return False
        try:
            api.create(RECORDS, record(node, key))
            return True
        except ApiError as problem:
            if problem.reason != "AlreadyExists":
                raise
        recorded = api.get(f"{RECORDS}/{RECORD_PREFIX}{node}")
    return not is_removed(recorded) and bool((recorded.get("data") or {}).get("publicKey") == key)


def is_removed(recorded: Optional[Object]) -> bool:
    """Whether the manager has deleted the machine with this name."""
    labels = ((recorded or {}).get("metadata") or {}).get("labels") or {}
    return labels.get(REMOVED) == "true"


def reserved_names() -> Set[str]:
    """The names of Nodes that the file of the last restore contains; none if it is old."""
    try:
        with open(RESERVED_NAMES) as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > RESERVED_SECONDS:
                return set()
            return {each for each in json.load(file) if len(each) <= MAX_NAME and NODE_NAME.fullmatch(each)}
    except FileNotFoundError:
        return set()


def find(api: Any, path: str) -> Optional[Object]:
    try:
        found = api.get(path)  # type: Object
    except ApiError as problem:
        if problem.reason != "NotFound":
            raise
        return None
    return found


def record(node: str, key: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": RECORD_PREFIX + node, "labels": {RECORD_LABEL: RECORD_OWNER}},
        "data": {"node": node, "publicKey": key},
        "immutable": True,
    }


def record_nodes(api: Any) -> None:
    """Record the names of Nodes and machines that have no record, with no key.

    kubeadm signs the certificate of the first server, an administrator may approve one, and others are older than this
    program. Without a record, the name could be issued once the Node is deleted, while pods are still bound to it.
    """
    known = {each["metadata"]["name"] for each in listed(api, RECORDS, labelSelector=f"{RECORD_LABEL}={RECORD_OWNER}")}
    nodes = {each["metadata"]["name"] for each in listed(api, NODES_PATH, limit=PAGE_OF_NODES)}
    for node in sorted(nodes | reserved_names()):
        if RECORD_PREFIX + node in known or len(node) > MAX_NAME:
            continue
        try:
            api.create(RECORDS, record(node, ""))
        except ApiError as problem:
            if problem.reason != "AlreadyExists":
                raise


def listed(api: Any, path: str, **query: Any) -> Iterator[Object]:
    query.setdefault("limit", 500)
    while True:
        page = api.get(f"{path}?{urlencode(query)}")
        yield from page.get("items") or []
        query["continue"] = page["metadata"].get("continue")
        if not query["continue"]:
            return


def handle(api: Any, csr: Object) -> None:
    decision = decide(api, csr)
    if decision is None:
        return
    status = csr.setdefault("status", {})
    condition = {"status": "True", **decision._asdict()}
    status["conditions"] = [*(status.get("conditions") or []), condition]
    name = csr["metadata"]["name"]
    try:
        api.replace(f"{REQUESTS}/{quote(name, safe='')}/approval", csr)
    except ApiError as problem:
        # Another server was faster, or the request is gone; what it has become arrives as an event.
        if problem.reason not in ("Conflict", "NotFound"):
            raise
        return
    log(f"CertificateSigningRequest {name}: {decision.type}: {decision.message}")


# --- the service ----------------------------------------------------------------------------------------------------


def follow(api: Any) -> None:
    """Handle all requests, then each as it changes, until the watch ends or a request could not be handled."""
    version, failed = "", False
    query = {"fieldSelector": "spec.signerName=" + SIGNER, "limit": PAGE}  # type: Dict[str, Any]
    while True:
        page = api.get(f"{REQUESTS}?{urlencode(query)}")
        version = version or page["metadata"]["resourceVersion"]
        for each in page.get("items") or []:
            failed = not attempt(api, each) or failed
        if not page["metadata"].get("continue"):
            break
        query["continue"] = page["metadata"]["continue"]
    if failed:
        return
    changes = {
        "fieldSelector": "spec.signerName=" + SIGNER,
        "watch": "true",
        "resourceVersion": version,
        "timeoutSeconds": WATCH_SECONDS,
    }
    for event in api.watch(f"{REQUESTS}?{urlencode(changes)}"):
        if event["type"] == "ERROR" or (event["type"] in ("ADDED", "MODIFIED") and not attempt(api, event["object"])):
            return


def attempt(api: Any, csr: Object) -> bool:
    """One request that fails does not keep others waiting."""
    try:
        handle(api, csr)
    except (OSError, ValueError) as problem:
        log(f"CertificateSigningRequest {csr['metadata']['name']}: {problem}")
        return False
    return True


def log(message: str) -> None:
    """Users of the bootstrap token choose names of requests, so control characters are removed."""
    sys.stderr.write("".join(each if each.isprintable() else " " for each in message[:1000]) + "\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "herder-csr-approver",
        description="Approve client certificates of kubelets: one key for each node name.",
        epilog="example:\n  herder-csr-approver --kubeconfig /etc/kubernetes/admin.conf",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kubeconfig", required=True, metavar="FILE", help="kubeconfig of an administrator of the cluster"
    )
    return parser


def main() -> None:
    kubeconfig = _parser().parse_args().kubeconfig
    os.environ["LC_ALL"] = "C"  # kubectl translates some of its messages
    api, record_at = Kubectl(kubeconfig), time.monotonic()
    while True:
        try:
            if time.monotonic() >= record_at:  # not after every request that could not be handled
                record_nodes(api)
                record_at = time.monotonic() + WATCH_SECONDS
            follow(api)
        except (OSError, ValueError) as problem:
            log(f"certificate requests: {problem}")
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
