"""The table: what a user types, and words of the first line that name the cause.

Words in braces stand for values of the site: {url}, {listen}, {registry}, {data} and {files} (a directory). `user` is
the kubeconfig. Each file that a command reads is in FILES.
"""

from __future__ import annotations

from dataclasses import dataclass

CREATE = "herder create cluster heath --no-wait"
K3S = "--kubernetes v1.36.3+k3s1"
CONDITION = '-o jsonpath={.items[0].status.conditions[?(@.type=="PlanApplied")].message}'


@dataclass(frozen=True)
class Mistake:
    title: str
    command: str
    cause: tuple[str, ...]  # words of the first line
    status: int = 1  # exit code
    user: str = "admin"
    stdin: str = ""


def _case(title: str, command: str, *cause: str, status: int = 1, user: str = "admin", stdin: str = "") -> Mistake:
    return Mistake(title, command, cause, status, user, stdin)


VERSIONS = (
    _case("unknown version", f"{CREATE} --kubernetes latest", "spec.kubernetesVersion", '"latest"', "such as v1."),
    _case("version without a distribution", f"{CREATE} --kubernetes v1.36.3", '"v1.36.3"', "with its distribution"),
    _case("unknown distribution", f"{CREATE} --kubernetes v1.36.3+sheep1", '"v1.36.3+sheep1"', "distribution"),
    _case("downgrade", "herder upgrade cluster meadow v1.36.0+herder1", "is lower than v1.36.3+herder1"),
    _case("skipped minor version", "herder upgrade cluster meadow v1.38.0+herder1", "skips minor versions", "v1.37"),
    _case("changed distribution", "herder upgrade cluster meadow v1.36.4+k3s1", "the distribution of v1.36.3+herder1"),
)
MACHINES = (
    _case("unknown node driver", f"{CREATE} --driver nimbus", "NimbusConfig", "NodeDriver nimbus"),
    _case("inactive node driver", f"{CREATE} --driver digitalocean", "activate the NodeDriver digitalocean"),
    _case(
        "missing cloud credential",
        "herder create cluster moor --driver amazonec2 --credential fleet-default:aws",
        "cluster moor is stalled",
        "Secret fleet-default/aws does not exist",
    ),
    _case(
        "cloud credential of another user",
        "kubectl create -f {files}/stolen.yaml",
        "spec.cloudCredentialSecretName",
        'cannot get resource "secrets"',
        user="dolly",
    ),
    _case(
        "loopback server-url with the driver local",
        "herder create cluster fold --driver local",
        "setting server-url",
        "is a loopback address",
    ),
    _case(
        "missing machine config",
        "kubectl get clusters.provisioning.cattle.io dell -n fleet-default "
        '-o jsonpath={.status.conditions[?(@.type=="Stalled")].message}',
        "ProcessConfig fleet-default/none does not exist",
        status=0,
    ),
    _case(
        "unknown field of a machine config",
        f"{CREATE} --machine-config sheep=3",
        "--machine-config: ProcessConfig has no field sheep",
        "memory",
        status=2,
    ),
    _case("machine config field of a wrong type", f"{CREATE} --machine-config memory=true", "memory", "type string"),
    _case("machine config field without a value", f"{CREATE} --machine-config memory", "not FIELD=VALUE", status=2),
    _case(
        "installer image not found",
        f"kubectl get machines.cluster.x-k8s.io -n fleet-default -l cluster.x-k8s.io/cluster-name=weald {CONDITION}",
        "system-agent-installer-k3s:v1.36.3-k3s1 cannot be pulled",
        status=0,
    ),
    _case(
        "image not found in a registry",
        "herder image save {registry}/team/app:v1 --output {files}/app.tar",
        "{registry}/team/app v1: not found in the registry",
    ),
)
POOLS = (
    _case("unknown pool", "herder scale cluster meadow herd=3", "has no machine pool herd", "servers, workers"),
    _case("negative size", "herder scale cluster meadow workers=-1", "'workers=-1'", "at least 0", status=2),
    _case("no etcd left", "herder scale cluster meadow servers=0", "would delete the last etcd machine"),
    _case("two servers of the embedded distribution", f"{CREATE} --servers 2", "embedded distribution", "1 server"),
    _case("too many machines", f"{CREATE} {K3S} --pool a=9999:etcd+controlplane+worker", "at most 5000 machines"),
    _case("unknown role of a pool", f"{CREATE} --pool a=1:etcd+boss", "unknown role 'boss'", status=2),
    _case("pool without roles", f"{CREATE} --pool a=1", "'a=1' is not NAME=COUNT:ROLES", status=2),
)
CONFIGURATION = (
    _case("unknown option", f"{CREATE} {K3S} --config {{files}}/option.yaml", "machineGlobalConfig.kubelet-argg"),
    _case("secret in the configuration", f"{CREATE} {K3S} --config {{files}}/token.yaml", "Config.token", "secret"),
    _case("invalid YAML", f"{CREATE} --config {{files}}/invalid.yaml", "invalid.yaml: invalid YAML: line 2", status=2),
    _case("missing file", f"{CREATE} --config {{files}}/none.yaml", "none.yaml' does not exist", status=2),
    _case(
        "unknown field in a manifest", "kubectl create -f {files}/field.yaml", 'unknown field "spec.rkeConfig.sheep"'
    ),
    _case("invalid label", "herder register meadow --label a=b=c", "--label", '"b=c"', status=2),
    _case("invalid taint", "herder register meadow --taint a=b:Never", '"a=b:Never"', "NoSchedule", status=2),
    _case("unknown role of a machine", "herder register meadow --roles boss", 'unknown role "boss"', status=2),
    _case("unknown flag", f"{CREATE} --worker 3", "--worker", status=2),
)
NAMES = (
    _case("invalid cluster name", "herder create cluster Heath_1 --no-wait", "metadata.name", '"Heath_1"'),
    _case("name that is taken", "herder create cluster meadow --no-wait", '"meadow" already exists'),
    _case(
        "typo in the namespace",
        "herder scale cluster meadow workers=2 -n fleet-defalt",
        "cluster meadow not found in namespace fleet-defalt",
    ),
    _case("delete a cluster that does not exist", "herder delete cluster medow", "medow", "not found"),
    _case("logs of an unknown machine", "herder logs machine meadow-none", 'machine "meadow-none"'),
    _case("ssh to an unknown machine", "herder ssh meadow-none", 'machine "meadow-none" not found', "meadow-servers"),
    _case("ssh to a machine that is not created", "herder ssh {waiting} -n full", "is not created yet"),
    _case("scale an imported cluster", "herder scale cluster strange workers=3", "cluster strange is imported"),
    _case("upgrade an imported cluster", "herder upgrade cluster strange v1.36.3+k3s1", "cluster strange is imported"),
    _case("unknown resource", "herder get sheep", '"sheep"'),
)
ACCESS = (
    _case("no kubeconfig", "herder get clusters", "no kubeconfig found", "herder up", status=2, user=""),
    _case("wrong KUBECONFIG", "herder get clusters", "none.yaml does not exist", "KUBECONFIG", status=2, user="none"),
    _case("invalid kubeconfig", "herder get clusters", "invalid.yaml: not YAML: line 2", user="invalid"),
    _case("manager that does not run", "herder get clusters", "connection refused", user="refused"),
    _case("wrong CA", "herder get clusters", "certificate is not trusted", user="other-ca"),
    _case(
        "login without the CA",
        "herder login {url} -u dolly --password-stdin --kubeconfig {files}/new.yaml",
        "certificate is not trusted",
        stdin="any",
    ),
    _case(
        "wrong password",
        "herder login {url} -u dolly --password-stdin --ca-checksum {checksum} --kubeconfig {files}/new.yaml",
        "authentication failed",
        "password",
        stdin="any",
    ),
    _case(
        "login over HTTP", "herder login http://127.0.0.1 -u dolly --password-stdin", "https://", status=2, stdin="a"
    ),
    _case(
        "revoked token",
        "herder scale cluster meadow workers=2",
        "must authenticate",
        "expired or revoked",
        user="revoked",
    ),
    _case(
        "cluster of another user",
        "herder scale cluster meadow workers=2",
        '"meadow" is forbidden',
        'cannot get resource "clusters"',
        user="dolly",
    ),
    _case("exceeded quota", f"{CREATE} -n full", "exceeded quota: none", "count/clusters.provisioning.cattle.io"),
)
SERVER = (
    _case("port in use", "herder up --data-dir {files}/other --listen {listen}", "in use"),
    _case("data directory of another manager", "herder up --data-dir {data} --listen 127.0.0.1:0", "in use by process"),
    _case("data directory that is a file", "herder up --data-dir {files}/file", "{files}/file", "is a file", status=2),
    _case("unknown setting", "herder up --set servr-url=a", 'no setting named "servr-url"', status=2),
    _case("invalid value of a setting", "herder up --set server-url=a.b", "server-url", "must be a URL", status=2),
    _case("setting without a value", "herder up --set server-url", "'server-url' is not NAME=VALUE", status=2),
    _case("invalid listen address", "herder up --listen nowhere", "--listen: must be HOST:PORT", status=2),
)

GROUPS = {
    "Versions": VERSIONS,
    "Machines and images": MACHINES,
    "Pools": POOLS,
    "Configuration": CONFIGURATION,
    "Names": NAMES,
    "Access": ACCESS,
    "The manager": SERVER,
}
ALL = tuple(mistake for group in GROUPS.values() for mistake in group)

_CLUSTER = """\
apiVersion: provisioning.cattle.io/v1
kind: Cluster
metadata: {{name: {name}, namespace: fleet-default}}
spec:
  kubernetesVersion: v1.36.3+k3s1
{spec}
"""
_POOL = "{name: a, quantity: 1, workerRole: true, machineConfigRef: {kind: ProcessConfig, name: none}}"
FILES = {
    "option.yaml": "kubelet-argg: x\n",
    "token.yaml": "token: not-a-secret\n",
    "invalid.yaml": "a: [\n",
    "registry.yaml": "system-default-registry: 127.0.0.1:1\n",
    "file": "",
    "stolen.yaml": _CLUSTER.format(name="mine", spec="  rkeConfig: {}\n  cloudCredentialSecretName: fleet-default:aws"),
    "field.yaml": _CLUSTER.format(name="mine", spec="  rkeConfig: {sheep: 3}"),
    "dell.yaml": _CLUSTER.format(name="dell", spec=f"  rkeConfig: {{machinePools: [{_POOL}]}}"),
}
