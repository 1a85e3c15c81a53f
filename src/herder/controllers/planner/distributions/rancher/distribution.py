"""Distribution interface of K3s and RKE2: assemble the plan of a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.node.plan import Plan, file
from herder.controllers.planner.distributions import s3, selected_files
from herder.controllers.planner.distributions.certificate_report import rancher_expiry
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs, Reference, Roles
from herder.controllers.planner.distributions.rancher import config as configs
from herder.controllers.planner.distributions.rancher import registries as pulling
from herder.controllers.planner.distributions.rancher.install import (
    address_instructions,
    agent_status_instruction,
    install,
    without_start,
)
from herder.controllers.planner.distributions.rancher.manifests import (
    authentication,
    authentication_file,
    manifests,
)
from herder.controllers.planner.distributions.rancher.probes import probes
from herder.controllers.planner.distributions.rancher.runtime import AGENT_REGISTRIES, Runtime, registry
from herder.controllers.planner.distributions.rancher.scripts import permissions, run_once_script
from herder.controllers.planner.distributions.rancher.snapshots import hash_instruction
from herder.controllers.planner.distributions.rancher.tasks import kubectl, task_instructions
from herder.controllers.planner.distributions.rancher.text import indented
from herder.controllers.planner.distributions.tasks import (
    Mode,
    Rejoin,
    RestoreSnapshot,
    RotateCertificates,
    StartServices,
    Task,
    with_deletion,
)
from herder.controllers.planner.drain.hashes import drain_hash_of


@dataclass(frozen=True)
class Rancher:
    """Renders plans of K3s or RKE2, depending on the runtime."""

    runtime: Runtime
    revision: int = 1
    api_port: int = 6443
    names_servers: bool = False  # agents have their own load balancer
    runs_agent_pod: bool = True
    schedules_snapshots: bool = True
    authorities: Sequence[str] = ()  # the first server creates them
    manages_keys: bool = False

    @property
    def name(self) -> str:
        return self.runtime.name

    @property
    def supervisor_port(self) -> int:
        return self.runtime.supervisor_port

    def refusal(self, cluster: ClusterInputs, roles: Roles) -> str:
        return "" if roles != Roles() else "it has no role: etcd, control plane or worker"

    def references(self, spec: Mapping[str, Any], namespace: str) -> Sequence[Reference]:
        return [
            *pulling.references(spec, namespace),
            *s3.references(spec, namespace),
            *configs.references(spec),
            *selected_files.references(spec, namespace),
        ]

    def keys_problem(self, spec: Mapping[str, Any]) -> str:
        return ""

    def unit(self, roles: Roles) -> str:
        return self.runtime.server_unit if roles.is_server else self.runtime.agent_unit

    def task(self, cluster: ClusterInputs, machine: MachineInputs, task: Task) -> Plan:
        """A restore runs without the service; other tasks come before it starts, unless they start it."""
        instructions = task_instructions(cluster, machine, self.runtime, task)
        if task.mode is not Mode.RENDERED:
            rotates = isinstance(task, RotateCertificates) and instructions and not machine.windows
            expiry = (rancher_expiry(self.runtime.data(cluster)),) if rotates else ()
            return Plan(instructions=instructions, periodic_instructions=expiry)
        plan = self.render(cluster, machine)
        if isinstance(task, RestoreSnapshot):
            installed = tuple(without_start(each, self.runtime) for each in plan.instructions)
            return Plan(files=plan.files, instructions=(*installed, *instructions))
        if isinstance(task, StartServices):
            undo, start = instructions
            return replace(plan, instructions=(undo, *plan.instructions, start))
        plan = replace(plan, instructions=(*instructions, *plan.instructions))
        if isinstance(task, Rejoin):
            return with_deletion(plan, task, *kubectl(self.runtime, self.runtime.data(cluster)))
        return plan

    def drain_hash(self, plan: Plan) -> str:
        return drain_hash_of(plan)

    def owns_file(self, cluster: ClusterInputs, path: str) -> bool:
        """Registry configuration, certificates and argument files.

        Not manifests, whose objects would stay in the cluster; nor files that users place elsewhere, which may have
        existed before.
        """
        own = f"{self.runtime.data(cluster)}/etc/"
        return path.startswith(own) or path in (AGENT_REGISTRIES, authentication_file(cluster, self.runtime))

    def member_removal(self) -> str:
        return self.runtime.facts.member_removal

    def render(self, cluster: ClusterInputs, machine: MachineInputs) -> Plan:
        """Render the plan. The order of files is part of the restart stamp: never change it."""
        if machine.windows and not (self.runtime.name == "rke2" and machine.roles.only_worker):
            raise ConfigError(f"machine {machine.name}: Windows nodes can be workers of RKE2, and nothing else")
        if cluster.spec.get("unmanagedConfig"):
            return Plan()
        from_manager = bool(cluster.manager) and registry(cluster) == cluster.manager
        inputs = pulling.with_manager(cluster) if from_manager else cluster
        registries, pulled = pulling.registries(inputs, f"{self.runtime.data(cluster)}/etc/tls/registries")
        config = configs.config_of(cluster, machine, self.runtime, registries)
        files = [
            *pulled,
            *config.files,
            *selected_files.selected_files(cluster, machine),
            file(self.runtime.config_file, indented(config.values)),
            *manifests(cluster, machine, self.runtime, config.values),
            *authentication(cluster, machine, self.runtime),
            run_once_script(cluster, machine),
        ]
        instructions = [install(cluster, machine, self.runtime, files, config.values)]
        if machine.windows and cluster.initialized:
            script, instruction = permissions()
            files.append(script)
            instructions.append(instruction)
        is_etcd_only_init = machine.is_init and machine.roles.only_etcd and not machine.join_url_autoset_disabled
        addresses = address_instructions(cluster, self.runtime) if is_etcd_only_init else ()
        # These come last, because an agent skips the instructions after one that failed.
        status = (agent_status_instruction(cluster, self.runtime),) if machine.reports_agent else ()
        expiry = () if machine.windows else (rancher_expiry(self.runtime.data(cluster)),)
        hashes = (hash_instruction(self.runtime.data(cluster)),) if machine.roles.etcd else ()
        return Plan(
            files=tuple(files),
            instructions=tuple(instructions),
            periodic_instructions=(*addresses, *status, *expiry, *hashes),
            probes=probes(cluster, machine, self.runtime, config.values),
        )
