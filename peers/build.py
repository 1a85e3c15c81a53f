"""Build the upstream programs that tests and benchmarks use, once, into a cache outside of the tree.

Each peer is a Go main package of a module whose version is set only in the `go.mod` of a folder next to this file.
The binary is `<cache>/<name>-<version>-<go version>/<name>`. A build writes to a temporary directory and renames it, so
an interrupted build leaves no partial program.

    python3 peers/build.py [NAME ...]     build what is missing (all by default), print each path
    python3 peers/build.py --core         build only what `make test` needs
    python3 peers/build.py --list         print names and paths without building

`make test` builds the core peers if they are missing, so each one adds to the first run. Extended peers are for
`make interop`, `make soak` and `make bench`, which run manually and commit their results.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(
    os.environ.get("HERDER_PEERS_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "herder" / "peers"
)


@dataclass(frozen=True)
class Peer:
    name: str
    wrapper: str  # folder next to this file whose go.mod requires the module
    module: str  # its version is part of the cache key
    package: str  # import path of a main package, or ./folder for our own program
    stamp: bool = False  # set the Kubernetes version in the binary, as the upstream build does
    version_in: str = ""  # variable that holds the version, if the program has one
    kube_version_in: tuple[str, ...] = ()  # packages that hold the version of their Kubernetes libraries
    tags: str = ""  # build tags of the upstream build
    test_binary: bool = False  # built by `go test -c`
    data: tuple[str, ...] = ()  # folders of the module's source to copy next to the binary
    extended: bool = False  # not needed by `make test`


PEERS = (
    Peer("etcd", "etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
    Peer("etcdctl", "etcd", "go.etcd.io/etcd/etcdctl/v3", "go.etcd.io/etcd/etcdctl/v3"),
    Peer("etcdutl", "etcd", "go.etcd.io/etcd/etcdutl/v3", "go.etcd.io/etcd/etcdutl/v3"),
    Peer("kube-apiserver", "kube", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", stamp=True),
    Peer("kubectl", "kube", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kubectl", stamp=True),
    Peer(
        "kube-controller-manager",
        "kube",
        "k8s.io/kubernetes",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        stamp=True,
    ),
    Peer("kube-scheduler", "kube", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", stamp=True),
    Peer("kube-proxy", "kube", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-proxy", stamp=True),
    Peer("kubelet", "kube", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kubelet", stamp=True),
    Peer("kubeadm", "kube", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kubeadm", stamp=True),
    Peer("informer", "kube", "k8s.io/kubernetes", "./informer"),
    Peer("load", "kube", "k8s.io/kubernetes", "./load", extended=True),
    Peer("pause", "kube", "k8s.io/kubernetes", "./pause"),
    Peer("e2e", "kube", "k8s.io/kubernetes", "./e2e", stamp=True, test_binary=True, extended=True),
    Peer(
        "helm",
        "helm",
        "helm.sh/helm/v3",
        "helm.sh/helm/v3/cmd/helm",
        version_in="helm.sh/helm/v3/internal/version.version",
        kube_version_in=("helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules"),
        extended=True,
    ),
    Peer(
        "capi-core",
        "capi",
        "sigs.k8s.io/cluster-api",
        "sigs.k8s.io/cluster-api",
        data=("config/crd/bases", "config/webhook"),
    ),
    Peer("clusterctl", "capi", "sigs.k8s.io/cluster-api", "sigs.k8s.io/cluster-api/cmd/clusterctl"),
    Peer(
        "capi-kubeadm-bootstrap",
        "capi",
        "sigs.k8s.io/cluster-api",
        "sigs.k8s.io/cluster-api/bootstrap/kubeadm",
        data=("bootstrap/kubeadm/config/crd/bases", "bootstrap/kubeadm/config/webhook"),
        extended=True,
    ),
    Peer(
        "capi-kubeadm-control-plane",
        "capi",
        "sigs.k8s.io/cluster-api",
        "sigs.k8s.io/cluster-api/controlplane/kubeadm",
        data=("controlplane/kubeadm/config/crd/bases", "controlplane/kubeadm/config/webhook"),
        extended=True,
    ),
    Peer(
        "capi-dev",
        "capi",
        "sigs.k8s.io/cluster-api/test",
        "sigs.k8s.io/cluster-api/test/infrastructure/docker",
        data=("infrastructure/docker/config/crd/bases", "infrastructure/docker/config/webhook"),
        extended=True,
    ),
    Peer(
        "rancher-machine",
        "machine",
        "github.com/rancher/machine",
        "github.com/rancher/machine/cmd/rancher-machine",
        version_in="github.com/rancher/machine/version.Version",
        tags="netgo",
    ),
    Peer("machine-driver-example", "machine", "github.com/rancher/machine", "./driver", tags="netgo"),
    Peer("machine-driver-flags", "machine", "github.com/rancher/machine", "./flags", tags="netgo"),
    Peer(
        "rancher-system-agent",
        "agent",
        "github.com/rancher/system-agent",
        "github.com/rancher/system-agent",
        version_in="github.com/rancher/system-agent/pkg/version.Version",
    ),
    Peer("versitygw", "versitygw", "github.com/versity/versitygw", "github.com/versity/versitygw/cmd/versitygw"),
    Peer("remotedialer-client", "remotedialer", "github.com/rancher/remotedialer", "./client"),
    Peer("remotedialer-server", "remotedialer", "github.com/rancher/remotedialer", "./server"),
)
BY_NAME = {peer.name: peer for peer in PEERS}


def go(*args: str, cwd: Path, quiet: bool = False) -> str:
    env = os.environ | {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false"}
    finished = subprocess.run(
        ["go", *args],
        cwd=cwd,
        env=env,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if quiet else None,
    )
    if finished.returncode:
        raise SystemExit(f"peers: 'go {' '.join(args[:2])} …' failed in {cwd.name}\n{finished.stderr or ''}")
    return finished.stdout.strip()


def go_version() -> str:
    if shutil.which("go") is None:
        raise SystemExit("peers: Go 1.26 is needed to build the peers; install it and run again")
    return go("env", "GOVERSION", cwd=HERE)


def module_version(peer: Peer) -> str:
    """Return the required version from go.mod; `go list` would need network access."""
    return required_version(peer.wrapper, peer.module)


def required_version(wrapper: str, module: str) -> str:
    text = (HERE / wrapper / "go.mod").read_text()
    match = re.search(rf"^\s*(?:require\s+)?{re.escape(module)} (v\S+)", text, re.MULTILINE)
    if match is None:
        raise SystemExit(f"peers: {wrapper}/go.mod does not require {module}")
    return match.group(1)


def key(peer: Peer, toolchain: str) -> str:
    version = module_version(peer)
    if peer.package.startswith("./"):
        sources = sorted((HERE / peer.wrapper / peer.package).glob("*.go"))
        digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
        version += "-" + digest[:10]
    return f"{peer.name}-{version}-{toolchain}"


def path_of(name: str, toolchain: str | None = None) -> Path:
    peer = BY_NAME[name]
    return CACHE / key(peer, toolchain or go_version()) / peer.name


def build(peer: Peer, toolchain: str) -> Path:
    target = CACHE / key(peer, toolchain) / peer.name
    if target.exists():
        return target
    started = time.monotonic()
    print(f"peers: building {target.parent.name} …", file=sys.stderr, flush=True)
    staging = target.parent.with_name(f".{target.parent.name}.{os.getpid()}")
    staging.mkdir(parents=True)
    wrapper = HERE / peer.wrapper
    command = ["test", "-c"] if peer.test_binary else ["build"]
    flags = ("-trimpath", "-ldflags", ldflags(peer), "-tags", peer.tags, "-o", str(staging / peer.name))
    go(*command, *flags, peer.package, cwd=wrapper)
    if peer.data:
        source = Path(go("list", "-m", "-f", "{{.Dir}}", peer.module, cwd=wrapper))
        for folder in peer.data:
            shutil.copytree(source / folder, staging / folder, copy_function=shutil.copyfile)
    staging.rename(target.parent)
    print(f"peers: {peer.name} built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return target


def ldflags(peer: Peer) -> str:
    flags = "-s -w"
    if peer.stamp:
        version = module_version(peer)
        major, minor = version.removeprefix("v").split(".")[:2]
        stamp = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        flags += "".join(f" -X k8s.io/component-base/version.{k}={v}" for k, v in stamp.items())
    if peer.version_in:
        flags += f" -X {peer.version_in}={module_version(peer)}"
    for package in peer.kube_version_in:  # without it, the program assumes an old Kubernetes
        minor = required_version(peer.wrapper, "k8s.io/client-go").split(".")[1]
        flags += f" -X {package}.k8sVersionMajor=1 -X {package}.k8sVersionMinor={minor}"
    return flags


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="peers to build (default: all)")
    parser.add_argument("--core", action="store_true", help="only the peers that `make test` needs")
    parser.add_argument("--list", action="store_true", help="print names and paths, build nothing")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)} (known peers: {', '.join(BY_NAME)})")
    toolchain = go_version()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:  # concurrent builds would compete for the same cores
        if not options.list:
            fcntl.flock(lock, fcntl.LOCK_EX)
        for name in options.names or [peer.name for peer in PEERS if not (options.core and peer.extended)]:
            peer = BY_NAME[name]
            print(f"{name}\t{path_of(name, toolchain) if options.list else build(peer, toolchain)}", flush=True)


if __name__ == "__main__":
    main()
