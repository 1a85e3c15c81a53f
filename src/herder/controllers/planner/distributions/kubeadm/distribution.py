"""kubeadm distribution (`+kubeadmN`): upstream Kubernetes on the machine's own containerd.

kubeadm creates certificates and static Pods, and joins machines. The certificate authorities are part of the plan, so
no server is special. Machines reach the servers by one host name, which each resolves by itself. The installer script
`herder/kubeadm/run.sh` reads the rendered files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from herder.api.rke.distributions import KUBEADM
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.names import KUBEADM_INSTALLER
from herder.api.rke.node.plan import File, HttpGet, Instruction, Plan, Probe
from herder.api.rke.roles import unsupported_roles
from herder.controllers.planner.distributions import s3, selected_files
from herder.controllers.planner.distributions.agent_status import status_instruction
from herder.controllers.planner.distributions.certificate_report import kubeadm_expiry
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs, Reference, Roles
from herder.controllers.planner.distributions.kubeadm.bootstrap_files import bootstrap_files
from herder.controllers.planner.distributions.kubeadm.certificates import rotate_certificates
from herder.controllers.planner.distributions.kubeadm.encryption import key_files, key_task, keys_problem
from herder.controllers.planner.distributions.kubeadm.node_files import node_files
from herder.controllers.planner.distributions.kubeadm.paths import API_PORT, CONFIG_DIR
from herder.controllers.planner.distributions.kubeadm.registries import registry_files
from herder.controllers.planner.distributions.kubeadm.snapshots import snapshot_config, snapshot_task
from herder.controllers.planner.distributions.kubeadm.user_config import user_config
from herder.controllers.planner.distributions.rancher import registries as pulling
from herder.controllers.planner.distributions.selector_config import install_variables
from herder.controllers.planner.distributions.snapshot_program import config_files
from herder.controllers.planner.distributions.tasks import (
    EncryptSecrets,
    Mode,
    RestartServices,
    RotateCertificates,
    Task,
)


class Kubeadm:
    """Renders plans of kubeadm clusters."""

    name = KUBEADM.name
    revision = 3
    supervisor_port = API_PORT
    api_port = API_PORT
    names_servers = True
    runs_agent_pod = True
    schedules_snapshots = False
    authorities: Sequence[str] = ("ca", "etcd", "sa", "proxy")
    manages_keys = True

    def refusal(self, cluster: ClusterInputs, roles: Roles) -> str:
        return unsupported_roles(KUBEADM.build, etcd=roles.etcd, control_plane=roles.control_plane)

    def references(self, spec: Mapping[str, Any], namespace: str) -> Sequence[Reference]:
        return [
            *pulling.references(spec, namespace),
            *s3.references(spec, namespace),
            *selected_files.references(spec, namespace),
        ]

    def task(self, cluster: ClusterInputs, machine: MachineInputs, task: Task) -> Plan:
        match task:
            case RotateCertificates():
                return rotate_certificates(machine, task)
            case EncryptSecrets() | RestartServices():
                return key_task(cluster, machine, task)
        plan = self.render(cluster, machine) if task.mode is Mode.RENDERED else Plan()
        return snapshot_task(cluster, machine, task, plan)

    def keys_problem(self, spec: Mapping[str, Any]) -> str:
        return keys_problem(spec)

    def unit(self, roles: Roles) -> str:
        return "kubelet"

    def owns_file(self, cluster: ClusterInputs, path: str) -> bool:
        return False  # the installer recognizes the machine's state by its files

    def member_removal(self) -> str:
        return KUBEADM.member_removal

    def drain_hash(self, plan: Plan) -> str:
        install = next((each for each in plan.instructions if each.name == "install"), None)
        return next((e.partition("=")[2] for e in install.env if e.startswith("DRAIN_HASH=")), "") if install else ""

    def render(self, cluster: ClusterInputs, machine: MachineInputs) -> Plan:
        if machine.windows:
            raise ConfigError("machinePools: kubeadm clusters have no Windows nodes here")
        config = user_config(cluster, machine)
        files = (
            *node_files(cluster, machine, config),
            *registry_files(cluster),
            *bootstrap_files(cluster, machine, config),
            *(config_files(cluster, snapshot_config(cluster, machine)) if machine.roles.etcd else ()),
            *(key_files(cluster) if machine.roles.is_server else ()),
            *selected_files.selected_files(cluster, machine),
        )
        install = _install(cluster, machine, files)
        status = status_instruction("/usr/local/bin/kubectl", "--kubeconfig=/etc/kubernetes/admin.conf")
        return Plan(
            files=files,
            instructions=(install,),
            # Last, because it fails until all certificates exist, and agents skip the instructions after it.
            periodic_instructions=(*((status,) if machine.reports_agent else ()), kubeadm_expiry()),
            probes=_probes(machine),
        )


def _install(cluster: ClusterInputs, machine: MachineInputs, files: Sequence[File]) -> Instruction:
    image = _image(cluster)
    stamp = _stamp(cluster, image, files)
    role = "init" if machine.is_init else "server" if machine.roles.is_server else "agent"
    environment = (
        f"RESTART_STAMP={stamp}",
        f"DRAIN_HASH={stamp}",
        *(f"{each['name']}={each['value']}" for each in install_variables(cluster)),
        f"INSTALL_KUBEADM_EXEC={role}",
    )
    return Instruction(name="install", image=image, command="sh", args=("-c", "run.sh"), env=environment)


def _image(cluster: ClusterInputs) -> str:
    registry = cluster.config.get("system-default-registry") or cluster.default_registry
    prefix = f"{registry}/" if registry else ""
    return f"{prefix}{KUBEADM_INSTALLER}:{cluster.version.replace('+', '-')}"


def _stamp(cluster: ClusterInputs, image: str, files: Sequence[File]) -> str:
    """The restart stamp. Labels and endpoints are applied to a running machine and need no restart."""
    without_restart = (f"{CONFIG_DIR}/labels", f"{CONFIG_DIR}/join.yaml", f"{CONFIG_DIR}/endpoints")
    content = "".join(
        each.path + each.content for each in files if not each.dynamic and each.path not in without_restart
    )
    generation = cluster.spec.get("provisionGeneration") or 0
    return hashlib.sha256(f"{generation}{image}{content}{cluster.config_generation}".encode()).hexdigest()


def _probes(machine: MachineInputs) -> dict[str, Probe]:
    probes = {"kubelet": _probe("http://127.0.0.1:10248/healthz")}
    if machine.roles.is_server:
        probes |= {
            "etcd": _probe("http://127.0.0.1:2381/health"),
            "kube-apiserver": _probe(f"https://127.0.0.1:{API_PORT}/readyz", authority=f"{CONFIG_DIR}/ca.crt"),
            # Both create a self-signed certificate at each start.
            "kube-controller-manager": _probe("https://127.0.0.1:10257/healthz", insecure=True),
            "kube-scheduler": _probe("https://127.0.0.1:10259/healthz", insecure=True),
        }
    return probes


def _probe(url: str, *, authority: str = "", insecure: bool = False) -> Probe:
    get = HttpGet(url=url, ca_cert=authority, insecure=insecure)
    return Probe(initial_delay_seconds=1, timeout_seconds=5, success_threshold=1, failure_threshold=5, http_get=get)
