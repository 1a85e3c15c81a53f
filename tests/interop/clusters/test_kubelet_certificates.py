"""Client certificates of kubelets in kubeadm clusters: which requests are approved by a real kube-apiserver and
kube-controller-manager with the flags that kubeadm writes into the manifest of a server.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from herder.controllers.planner import removed_nodes
from herder.controllers.planner.distributions.interface import Authority, ClusterInputs, MachineInputs, Roles
from herder.controllers.planner.distributions.kubeadm.bootstrap_files import TOKEN_GROUP
from herder.controllers.planner.distributions.kubeadm.distribution import Kubeadm
from herder.controllers.planner.distributions.kubeadm.paths import CONFIG_DIR, token
from herder.kubeadm import csr_approver
from tests.support.clusters.kubeadm_clusters import installer_function, kubelet_request, new_key
from tests.support.kube import RealKube
from tests.support.peers import peer

APPROVER = Path(csr_approver.__file__)
SERVER, WORKER = "server-1", "worker-1"
AUTHORITIES = {name: Authority(f"certificate of {name}", f"key of {name}") for name in Kubeadm.authorities}
CLUSTER = ClusterInputs(
    namespace="fleet-default",
    name="farm",
    management_name="c-m-1",
    version="v1.36.3+kubeadm1",
    spec={},
    agent_token="joining",
    authorities=AUTHORITIES,
)
TOKEN = token(CLUSTER)
# kubeadm init binds the group of the token to these roles, and kubelets to the last one.
BINDINGS = (
    ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", TOKEN_GROUP),
    (
        "kubeadm:node-autoapprove-bootstrap",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        TOKEN_GROUP,
    ),
    (
        "kubeadm:node-autoapprove-certificate-rotation",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        "system:nodes",
    ),
)


# --- cluster ----------------------------------------------------------------------------------------------------------


def manifest(directory: Path, *arguments: str) -> Any:
    """The manifest of kube-controller-manager that kubeadm writes with the installer's configuration."""
    patches, written = directory / "patches", directory / "written"
    written.mkdir(parents=True)
    function = installer_function("annotate_build")
    script = f"set -eu\npatches={patches}\nbuild=v1.36.3+kubeadm1\n{function}\nannotate_build\n"
    subprocess.run(["sh"], input=script, text=True, check=True)
    spec = {"machineGlobalConfig": {"kube-controller-manager-arg": [*arguments]}} if arguments else {}
    server = MachineInputs(
        name="m",
        uid="u",
        roles=Roles(etcd=True, control_plane=True),
        is_init=True,
        internal_addresses=("10.0.0.1",),
        node_name=SERVER,
    )
    plan = Kubeadm().render(replace(CLUSTER, spec=spec), server)
    content = next(each for each in plan.files if each.path == f"{CONFIG_DIR}/init.yaml").decoded.decode()
    config = directory / "init.yaml"
    config.write_text(content.replace("/var/lib/rancher/kubeadm/patches", str(patches)))
    command = [str(peer("kubeadm")), "init", "phase", "control-plane", "controller-manager"]
    command += ["--dry-run", "--config", str(config)]
    subprocess.run(command, env={"KUBEADM_INIT_DRYRUN_DIR": str(written)}, check=True, capture_output=True)
    return yaml.safe_load((written / "kube-controller-manager.yaml").read_text())


def controllers(directory: Path, *arguments: str) -> list[str]:
    """The values of --controllers, in their order; kube-controller-manager reads them as one list."""
    command = manifest(directory, *arguments)["spec"]["containers"][0]["command"]
    return [each.partition("=")[2] for each in command if each.startswith("--controllers=")]


class Api:
    """A real control plane, with the objects of a cluster that has one server."""

    def __init__(self, kube: RealKube) -> None:
        self.kube = kube
        self._count = 0

    def admin(self, *arguments: str, stdin: object = None) -> str:
        command = [str(peer("kubectl")), "--kubeconfig", str(self.kube.kubeconfig), *arguments]
        body = None if stdin is None else json.dumps(stdin)
        return subprocess.run(command, input=body, capture_output=True, text=True, check=True).stdout

    def prepare(self) -> None:
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": f"bootstrap-token-{TOKEN.partition('.')[0]}", "namespace": "kube-system"},
            "stringData": {
                "token-id": TOKEN.partition(".")[0],
                "token-secret": TOKEN.partition(".")[2],
                "usage-bootstrap-authentication": "true",
                "auth-extra-groups": TOKEN_GROUP,
            },
        }
        self.admin("create", "-f", "-", stdin=secret)
        for name, role, group in BINDINGS:
            self.admin("create", "clusterrolebinding", name, f"--clusterrole={role}", f"--group={group}")
        self.create_node(SERVER)

    def create_node(self, name: str) -> None:
        self.admin("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    def kubectl(
        self, credentials: tuple[str, ...], *arguments: str, stdin: object = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl with only these credentials."""
        command = [str(peer("kubectl")), "--kubeconfig", "/dev/null", "--server", self.kube.url]
        command += ["--certificate-authority", str(self.kube.authority.path), *credentials, *arguments]
        body = None if stdin is None else json.dumps(stdin)
        return subprocess.run(command, input=body, capture_output=True, text=True, check=False)

    def request(self, credentials: tuple[str, ...], node: str, key: ec.EllipticCurvePrivateKey) -> str:
        """Create a CertificateSigningRequest as a kubelet does; returns its name."""
        self._count += 1
        name = f"csr-{self._count}"
        done = self.kubectl(credentials, "create", "-f", "-", stdin=kubelet_request(name, node, key))
        assert done.returncode == 0, done.stderr
        return name

    def outcome(self, name: str, seconds: float = 20) -> tuple[str, str]:
        """Type and message of its first condition, or that it is still pending."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for each in self._status(name).get("conditions") or []:
                return each["type"], each.get("message", "")
            time.sleep(0.1)
        return "Pending", ""

    def certificate(self, name: str) -> bytes:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if issued := self._status(name).get("certificate"):
                return base64.b64decode(issued)
            time.sleep(0.1)
        raise AssertionError(f"no certificate for {name}: {self._status(name)}")

    def mark_removed(self, node: str) -> None:
        """Apply what the manager applies when it deletes the Machine."""
        record = removed_nodes.marked_record(f"{removed_nodes.RECORD_PREFIX}{node}")
        self.admin(
            "apply", "--server-side", "--force-conflicts", "--field-manager=removed-nodes", "-f", "-", stdin=record
        )

    def wait_recorded(self, node: str) -> None:
        """Wait until the name is recorded."""
        name = f"kubelet-certificate.{node}"
        self.admin("wait", "-n", "kube-system", "--for=create", "--timeout=30s", "configmap", name)

    def _status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.admin("get", "csr", name, "-o", "json"))["status"]
        return found


BOOTSTRAP = ("--token", TOKEN)


def client_certificate(directory: Path, issued: bytes, key: ec.EllipticCurvePrivateKey) -> tuple[str, ...]:
    certificate, private = directory / "kubelet.crt", directory / "kubelet.key"
    certificate.write_bytes(issued)
    encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(*encoding))
    return "--client-certificate", str(certificate), "--client-key", str(private)


RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import csr_approver
csr_approver.RESERVED_NAMES = sys.argv[2]
sys.argv[1:] = ["--kubeconfig", sys.argv[3]]
csr_approver.main()
"""


def reserved_names(kube: RealKube) -> Path:
    """The file that tasks of a restore write on each server."""
    return kube.directory / "reserved-node-names.json"


@contextlib.contextmanager
def approver(kube: RealKube, number: int) -> Iterator[None]:
    """The CSR approver, as it runs on each server."""
    path = f"{peer('kubectl').parent}:{os.environ['PATH']}"
    command = [sys.executable, "-c", RUN, str(APPROVER.parent), str(reserved_names(kube)), str(kube.kubeconfig)]
    with (kube.directory / f"approver-{number}.log").open("wb") as log:
        process = subprocess.Popen(command, env={"PATH": path}, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # with its watch, as systemd does
        process.wait(20)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory = tmp_path_factory.mktemp("cluster")
    first, *others = controllers(directory / "manifest")
    kube = RealKube(
        directory,
        controller_manager=True,
        controllers=(first,),
        flags=(
            "--enable-bootstrap-token-auth=true",
            "--authorization-mode=Node",  # besides RBAC
            "--enable-admission-plugins=NodeRestriction",
        ),
        controller_manager_flags=tuple(f"--controllers={each}" for each in others),
    )
    with kube, approver(kube, 1), approver(kube, 2):
        api = Api(kube)
        api.prepare()
        yield api


# --- certificates of workers ------------------------------------------------------------------------------------------


def test_a_worker_cannot_get_the_identity_of_a_server(api: Api) -> None:
    stolen = api.request(BOOTSTRAP, SERVER, new_key())
    kind, message = api.outcome(stolen)
    assert kind == "Denied"
    assert f"delete Node {SERVER}, ConfigMap kube-system/kubelet-certificate.{SERVER} and this request" in message


def test_a_new_machine_gets_its_certificate_and_renews_it(api: Api, tmp_path: Path) -> None:
    key = new_key()
    issued = api.certificate(api.request(BOOTSTRAP, WORKER, key))
    credentials = client_certificate(tmp_path, issued, key)
    api.create_node(WORKER)
    renewed = api.certificate(api.request(credentials, WORKER, new_key()))
    (name,) = x509.load_pem_x509_certificate(renewed).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == f"system:node:{WORKER}"
    api.admin("delete", "node", WORKER)
    kind, message = api.outcome(api.request(credentials, WORKER, new_key()))
    assert kind == "Denied"
    assert f"Node {WORKER} does not exist" in message


def test_a_removed_machine_keeps_no_certificate_by_registering_its_node_again(api: Api, tmp_path: Path) -> None:
    """Its certificate is valid until it expires, and its bootstrap token is that of all machines."""
    key = new_key()
    issued = api.certificate(api.request(BOOTSTRAP, "removed", key))
    credentials = client_certificate(tmp_path, issued, key)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "removed"}}
    assert api.kubectl(credentials, "create", "-f", "-", stdin=node).returncode == 0
    api.admin("delete", "node", "removed")
    api.mark_removed("removed")
    assert api.kubectl(credentials, "create", "-f", "-", stdin=node).returncode == 0
    assert api.outcome(api.request(credentials, "removed", new_key()))[0] == "Denied"
    assert api.outcome(api.request(BOOTSTRAP, "removed", key))[0] == "Denied"
    api.mark_removed("never-recorded")
    assert api.outcome(api.request(BOOTSTRAP, "never-recorded", new_key()))[0] == "Denied"


def test_a_retry_with_the_same_key_gets_the_certificate(api: Api) -> None:
    """Even after its Node was registered: a join can be interrupted then."""
    key = new_key()
    api.certificate(api.request(BOOTSTRAP, "retrying", key))
    api.create_node("retrying")
    api.certificate(api.request(BOOTSTRAP, "retrying", key))


@pytest.mark.skipif(os.geteuid() != 0, reason="kubelets need root")
def test_a_real_kubelet_joins_and_rejoins_with_its_key(api: Api, tmp_path: Path) -> None:
    first, again, waiting, other = (tmp_path / name for name in ("first", "again", "waiting", "other"))
    current, unfinished = "pki/kubelet-client-current.pem", "pki/kubelet-client.key.tmp"
    run_kubelet(api, first, "real")
    issued = (first / current).read_text()
    api.create_node("real")
    for directory, name, content in (
        (again, current, issued),
        (waiting, unfinished, issued[issued.index("-----BEGIN EC PRIVATE KEY") :]),
    ):
        (directory / "pki").mkdir(parents=True)
        (directory / "pki/kept").write_text(content)
        (directory / name).symlink_to("kept")
        run_kubelet(api, directory, "real")
        assert (directory / "kubelet.conf").exists()
        assert (directory / current).resolve().name != "kept", "a new certificate"
    assert "Node name real was issued to another key; give this machine another name" in run_kubelet(api, other, "real")
    assert not (other / current).exists()


def run_kubelet(api: Api, directory: Path, node: str) -> str:
    """Run a kubelet until it ends, which it does soon without a container runtime. Returns its log."""
    directory.mkdir(exist_ok=True)
    cluster = {"server": api.kube.url, "certificate-authority": str(api.kube.authority.path)}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": "nodes", "user": {"token": TOKEN}}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": "nodes"}}],
        "current-context": "default",
    }
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{directory}/none.sock",
        "failCgroupV1": False,
        "failSwapOn": False,
        "healthzPort": 0,
        "rotateCertificates": False,  # otherwise it requests the certificate after it has found a runtime
    }
    (directory / "bootstrap.conf").write_text(json.dumps(kubeconfig))
    (directory / "config.yaml").write_text(json.dumps(config))
    command = [
        str(peer("kubelet")),
        f"--hostname-override={node}",
        f"--bootstrap-kubeconfig={directory}/bootstrap.conf",
    ]
    command += [f"--kubeconfig={directory}/kubelet.conf", f"--config={directory}/config.yaml"]
    command += [f"--cert-dir={directory}/pki", f"--root-dir={directory}/root"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stderr


def test_a_name_is_not_issued_twice_before_and_after_its_node(api: Api) -> None:
    """The second server is joining: its Node does not exist yet. Later, its Node is deleted."""
    api.certificate(api.request(BOOTSTRAP, "server-2", new_key()))
    assert api.outcome(api.request(BOOTSTRAP, "server-2", new_key()))[0] == "Denied"
    api.create_node("server-2")
    api.admin("delete", "node", "server-2")
    assert api.outcome(api.request(BOOTSTRAP, "server-2", new_key()))[0] == "Denied"


def test_the_name_of_the_first_server_is_not_issued_after_its_node(api: Api) -> None:
    """kubeadm signs its certificate, and pods stay bound to a deleted Node for a minute."""
    with approver(api.kube, 3):  # a server that starts records the Nodes that exist
        api.wait_recorded(SERVER)
    api.admin("delete", "node", SERVER)
    try:
        assert api.outcome(api.request(BOOTSTRAP, SERVER, new_key()))[0] == "Denied"
    finally:
        api.create_node(SERVER)


def test_a_name_is_not_issued_again_after_a_restore_of_data_without_its_record(api: Api) -> None:
    """The restored data has neither Node nor record of a machine that joined after the snapshot."""
    name = "joined-later"
    api.certificate(api.request(BOOTSTRAP, name, new_key()))
    reserved_names(api.kube).write_text(json.dumps([SERVER, name]))
    api.admin("delete", "configmap", "-n", "kube-system", f"kubelet-certificate.{name}")  # as the restore does
    assert api.outcome(api.request(BOOTSTRAP, name, new_key()))[0] == "Denied"
    with approver(api.kube, 4):  # a server that starts records the names
        api.wait_recorded(name)
    reserved_names(api.kube).unlink()
    assert api.outcome(api.request(BOOTSTRAP, name, new_key()))[0] == "Denied"


def test_a_node_does_not_renew_the_certificate_of_another(api: Api, tmp_path: Path) -> None:
    key = new_key()
    credentials = client_certificate(tmp_path, api.certificate(api.request(BOOTSTRAP, "worker-2", key)), key)
    for name in (SERVER, "worker-3"):
        with pytest.raises(AssertionError, match="can only create a node CSR with CN=system:node:worker-2"):
            api.request(credentials, name, new_key())


def test_one_of_two_keys_gets_the_name(api: Api) -> None:
    """Two approvers see the requests while both run."""
    for number in range(5):
        names = [api.request(BOOTSTRAP, f"contended-{number}", new_key()) for _ in range(2)]
        assert sorted(api.outcome(name)[0] for name in names) == ["Approved", "Denied"]


def test_machines_cannot_write_the_record_of_names(api: Api, tmp_path: Path) -> None:
    key = new_key()
    credentials = client_certificate(tmp_path, api.certificate(api.request(BOOTSTRAP, "worker-4", key)), key)
    for client_flags in (BOOTSTRAP, credentials):
        for verb in ("create", "update", "patch", "delete"):
            answer = api.kubectl(client_flags, "auth", "can-i", verb, "configmaps", "-n", "kube-system")
            assert answer.stdout.startswith("no")
        for action in (("update", "csr", "--subresource=approval"), ("delete", "nodes")):
            assert api.kubectl(client_flags, "auth", "can-i", *action).stdout.startswith("no")


def test_a_released_name_is_issued_again(api: Api) -> None:
    key = new_key()
    api.certificate(api.request(BOOTSTRAP, "replaced", new_key()))
    assert api.outcome(api.request(BOOTSTRAP, "replaced", key))[0] == "Denied"
    api.admin("delete", "configmap", "-n", "kube-system", "kubelet-certificate.replaced")
    api.certificate(api.request(BOOTSTRAP, "replaced", key))


@pytest.mark.parametrize(
    "arguments", [(), ("controllers=*,-ttl",), ("controllers=*,csrapproving",), ("controllers=*", "controllers=ttl")]
)
def test_user_flags_cannot_enable_the_approving_controller(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """The first mention of a controller counts. Values of users are kept."""
    user_values = [each.partition("=")[2] for each in arguments] or ["*,bootstrapsigner,tokencleaner"]
    assert controllers(tmp_path, *arguments) == ["-certificatesigningrequest-approving-controller", *user_values]


# --- fields that nodes set --------------------------------------------------------------------------------------------


def test_a_worker_cannot_choose_its_pod_network(api: Api, tmp_path: Path) -> None:
    """Every machine routes the pod network of a Node to that Node."""
    api.admin("apply", "--server-side", "-f", str(node_manifest(tmp_path)))
    key = new_key()
    credentials = client_certificate(tmp_path, api.certificate(api.request(BOOTSTRAP, "router", key)), key)
    for spec in ({"podCIDRs": ["0.0.0.0/0"], "podCIDR": "0.0.0.0/0"}, {"podCIDR": "10.42.0.0/24"}):
        assert "a node cannot choose its pod network" in wait_until_rejected(api, credentials, "create", spec)
    plain = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "router"}, "spec": {}}
    created = api.kubectl(credentials, "create", "-f", "-", stdin=plain)
    assert created.returncode == 0, created.stderr
    patch = json.dumps({"spec": {"podCIDRs": ["10.42.0.0/24"], "podCIDR": "10.42.0.0/24"}})
    chosen = api.kubectl(credentials, "patch", "node", "router", "-p", patch)
    assert "a node cannot choose its pod network" in chosen.stderr
    assert api.kubectl(credentials, "label", "node", "router", "example.com/rack=7").returncode == 0
    api.admin("patch", "node", "router", "-p", patch)  # as kube-controller-manager assigns it
    assert api.kubectl(credentials, "label", "node", "router", "--overwrite", "example.com/rack=8").returncode == 0


def node_manifest(directory: Path) -> Path:
    """The manifest about Nodes that the first server applies."""
    server = MachineInputs(
        name="m", uid="u", roles=Roles(etcd=True, control_plane=True), is_init=True, internal_addresses=("10.0.0.1",)
    )
    plan = Kubeadm().render(CLUSTER, server)
    path = directory / "nodes.yaml"
    path.write_bytes(next(each for each in plan.files if each.path == f"{CONFIG_DIR}/manifests/nodes.yaml").decoded)
    return path


def wait_until_rejected(api: Api, credentials: tuple[str, ...], verb: str, spec: dict[str, Any]) -> str:
    """Retry until the API server enforces the policy, shortly after it is stored. Returns the error."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "router"}, "spec": spec}
    end = time.monotonic() + 20
    while True:
        done = api.kubectl(credentials, verb, "--dry-run=server", "-f", "-", stdin=node)
        if done.returncode or time.monotonic() > end:
            return done.stderr
        time.sleep(0.2)
