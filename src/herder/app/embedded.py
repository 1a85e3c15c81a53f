"""The process behind `herder up`: store, API server, HTTPS front, settings and controllers, in start order."""

from __future__ import annotations

import asyncio
import importlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herder.api.capi.core import Mode
from herder.api.settings import SERVER_CERTIFICATES, SERVER_URL, SETTING, parse_duration, validate_value
from herder.app.admission.kinds import (
    install_admission,
    install_cluster_admission,
    install_driver_admission,
    install_plan_admission,
    install_reference_admission,
    install_role_admission,
)
from herder.app.admission.tenancy import install_tenancy_admission
from herder.app.host.process import tune_interpreter, until_stopped, wall_clock
from herder.app.settings import Layers
from herder.engine.apiserver.admission.chain import Attributes
from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pki import Pki
from herder.engine.apiserver.request.limits import BODY_BYTES
from herder.engine.client.client import Client
from herder.engine.control.supervision import supervised
from herder.engine.front.http import HttpFront
from herder.engine.logs import get_logger
from herder.engine.meta.errors import invalid
from herder.engine.wire import Request, Response, User

if TYPE_CHECKING:
    from herder.api.settings import Settings
    from herder.app.gateway import Parts
    from herder.app.store.backups import Schedule
    from herder.engine.control.metrics import Metrics
    from herder.engine.runtime.manager import Manager
    from herder.workload.serving import Workloads

log = get_logger(__name__)

CONTROLLERS = User("system:serviceaccount:herder-system:herder", groups=("system:masters", "system:authenticated"))


class Serving:
    """The embedded server and its controllers."""

    def __init__(
        self,
        directory: Path,
        host: str,
        port: int,
        *,
        advertise: tuple[str, ...] = (),
        layers: Layers | None = None,
        core: str = Mode.AUTO.value,
        in_memory: bool = False,
        machines: bool = False,
        example: bool = False,
        gateway: bool = False,
        runner: bool = False,
        all_pods: bool = False,
        backups: Schedule | None = None,
        observe_only: bool = False,
    ) -> None:
        self._directory = directory
        self._host = host
        self._port = port
        self._advertise = advertise
        self._layers = layers or Layers()
        self._mode = core
        self._in_memory = in_memory
        self._machines = machines
        self._example = example
        self._gateway = gateway
        self._runner = runner
        self._all_pods = all_pods
        self._backups = backups
        self._observe_only = observe_only
        self._capi_rules_enabled = core != Mode.EXTERNAL  # whether our rules for Cluster API kinds are enabled
        self._tasks: list[asyncio.Task[Any]] = []
        self._controllers_ready, self._gateway_ready = asyncio.Event(), asyncio.Event()
        self.url = ""
        self.kubeconfig = directory / "kubeconfig"

    async def start(self) -> None:
        """Ready when this returns: the kubeconfig is written last."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        hosts = tuple(dict.fromkeys((*self._advertise, self._host)))
        pki = Pki.load_or_create(self._directory / "pki", now=wall_clock(), hosts=hosts)
        self.server: ApiServer = await assemble(
            self._directory, clock=wall_clock, entropy=os.urandom, pki=pki, retain=None
        )
        self.kubeconfig.unlink(missing_ok=True)  # left over from a killed process; the store is locked now
        self.server.deps.admission.add_validating("Settings", [SETTING.resource.group_resource], _check_setting)
        install_admission(self.server, lambda: self._capi_rules_enabled)
        self.client = Client(InProcess(self.server, CONTROLLERS))
        install_reference_admission(self.server, self.client, CONTROLLERS)
        if self._machines:
            install_driver_admission(self.server, self.client)
        if self._gateway:
            install_role_admission(self.server, self.client)
            install_tenancy_admission(self.server, self.client)
            install_cluster_admission(self.server)
            install_plan_admission(self.server)
        await self._prepare_restored()
        self._front = self._create_front()
        try:
            host, port = await self._front.listen(self._host, self._port, pki.server_context())
        except BaseException:
            await self.server.stop()
            raise
        advertised = self._advertise[0] if self._advertise else "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104
        self.url = f"https://[{advertised}]:{port}" if ":" in advertised else f"https://{advertised}:{port}"
        self._write_kubeconfig(pki)
        tune_interpreter()
        self._tasks.append(asyncio.ensure_future(self._run_controllers(pki)))
        self._tasks.append(asyncio.ensure_future(self._fail_with_store()))

    async def _prepare_restored(self) -> None:
        """After a restore or on request, make all clusters observe-only before agents can read their plans."""
        restored = self.server.deps.store.restored
        if restored is None and not self._observe_only:
            return
        from herder.app.store.restored import make_observe_only, observe_only_after_restore

        try:
            marked = await observe_only_after_restore(self.client, restored, wall_clock())
            if self._observe_only and marked is None:
                await make_observe_only(self.client, "requested by --observe-only")
        except BaseException:
            await self.server.stop()
            raise

    def _create_front(self) -> HttpFront:
        if not self._gateway:
            return HttpFront(self.server, clock=wall_clock, body_bytes=BODY_BYTES)
        from herder.app.gateway import GatewayHandler

        self._handler = GatewayHandler(self.server)
        return HttpFront(self._handler, clock=wall_clock, body_bytes=BODY_BYTES, upgrade=self._handler.upgrade)

    async def _run_controllers(self, pki: Pki) -> None:
        """Install our kinds, then run the controllers. Requests are served meanwhile."""
        # Imported concurrently with the first requests, to keep startup fast.
        parts = await asyncio.to_thread(importlib.import_module, "herder.app.manager")
        from herder.app.core.core import Core
        from herder.app.install import install
        from herder.app.metrics.gateway import (
            add_http_metrics,
            add_node_agent_metric,
            add_tunnel_metrics,
            agents_that_watch,
        )
        from herder.app.metrics.server import CONTENT_TYPE, add_manager_metrics, process_metrics
        from herder.app.metrics.store import add_store_metrics

        metrics, store = process_metrics(), self.server.deps.store
        add_store_metrics(metrics, store)
        add_http_metrics(metrics, self._front)

        async def scrape(_request: Request, _user: User) -> Response:
            return Response(200, {"content-type": CONTENT_TYPE}, metrics.render())

        self.server.add_route("/metrics", scrape)
        watched = parts.WatchedSettings(self.client)
        found = {SERVER_URL: self.url, SERVER_CERTIFICATES: pki.authority.certificate_pem.decode()}
        settings = parts.settings_from(self._layers, watched, found)
        core = Core(self.client, self._mode, inside=True)
        roles = parts.Roles(
            core=await core.choose(),
            in_memory=self._in_memory,
            machines=self._machines,
            gateway=self._gateway,
            example=self._example,
        )
        self._capi_rules_enabled = roles.core
        await install(self.client, settings, roles)
        await core.register_providers(in_memory=roles.in_memory)
        workloads = self._workloads(settings) if roles.in_memory else None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watched.run())
            await watched.ready()
            # The retention setting is only known once settings are synced.
            tasks.create_task(store.compact_by_age(lambda: parse_duration(settings.get("history-retention"))))
            if self._backups is not None:
                tasks.create_task(supervised(partial(self._run_backups, self._backups, metrics), name="store-backup"))
            if self._runner:
                tasks.create_task(supervised(partial(self._run_jobs, settings, pki), name="runner"))
            managed = None
            if self._gateway:
                gateway = await self._build_gateway(settings)
                tasks.create_task(self._run_gateway(gateway))
                managed = gateway.client_of
                add_tunnel_metrics(metrics, gateway.tunnels)
            manager = parts.create_manager(
                self.client, settings, roles, workloads=workloads, managed=managed, metrics=metrics
            )
            add_manager_metrics(manager, settings.get)
            if self._gateway:
                add_node_agent_metric(metrics, partial(agents_that_watch, store, manager))
            if roles.core:
                watch = partial(core.watch_for_other_core, manager, self._disable_capi_rules)
                tasks.create_task(supervised(watch, name="core-choice"))
            if self._gateway:
                await self._gateway_ready.wait()  # Controllers reach managed clusters through the gateway.
            tasks.create_task(self._report_ready(manager))
            try:
                await manager.run()
            finally:
                if workloads is not None:
                    await workloads.close()

    async def _run_backups(self, schedule: Schedule, metrics: Metrics) -> None:
        backups = await asyncio.to_thread(importlib.import_module, "herder.app.store.backups")
        from herder.engine.runtime.events.recorder import EventRecorder

        events = EventRecorder(self.client, clock=wall_clock, jitter=lambda: 0.5)
        config = backups.backup_config(
            self._directory, schedule.directory, retention=schedule.retention, s3=schedule.s3
        )
        scheduled = backups.ScheduledBackups(schedule, config, self.client, events, metrics, wall_clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(events.run())
            await scheduled.run()

    async def _report_ready(self, manager: Manager) -> None:
        await manager.ready()
        self._controllers_ready.set()

    async def ready(self) -> None:
        """Wait until all controllers run and users can log in. Only then can a cluster be created without delay."""
        await self._controllers_ready.wait()
        if self._gateway:
            await self._gateway_ready.wait()

    async def _build_gateway(self, settings: Settings) -> Parts:
        gateway = await asyncio.to_thread(importlib.import_module, "herder.app.gateway")
        from herder.gateway.proxy.local import InProcess as ThisServer

        parts: Parts = gateway.build(self.client, self.server, settings, local=ThisServer(self.server))
        return parts

    async def _run_gateway(self, parts: Parts) -> None:
        """Accept user tokens and agents once the gateway is ready."""

        async def on_ready() -> None:
            self._handler.gateway = parts.gateway
            self._gateway_ready.set()

        await parts.run(on_ready)

    def _disable_capi_rules(self) -> None:
        self._capi_rules_enabled = False

    def _workloads(self, settings: Settings) -> Workloads:
        from herder.app.workload_clusters import may_dial
        from herder.workload.serving import Workloads

        directory = self._directory / "workloads"
        return Workloads(self.client, clock=wall_clock, data_dir=directory, may_dial=may_dial(settings.get))

    async def _run_jobs(self, settings: Settings, pki: Pki) -> None:
        """Run a Job controller and the only node for its pods."""
        node = await asyncio.to_thread(importlib.import_module, "herder.app.runner")
        from herder.app.machine_provider import maintain_host, publish_host
        from herder.engine.runner.jobs import JobController
        from herder.engine.runner.runner import DEFAULT_NAME, RunnerError

        host_paths = await publish_host(self.client, self._directory, DEFAULT_NAME) if self._machines else ()
        runner = node.create_runner(
            self.client,
            settings,
            work_dir=self._directory / "runner",
            api_server=self.url,
            client_ca=pki.authority.certificate_pem,
            hidden=(self._directory,),
            host_paths=host_paths,
            all_pods=self._all_pods,
        )
        async with asyncio.TaskGroup() as tasks:
            jobs = JobController(self.client, clock=wall_clock)
            tasks.create_task(supervised(jobs.run, name="job-controller"))
            if self._machines:
                tasks.create_task(supervised(partial(maintain_host, self._directory), name="host-daemon"))
            try:
                await runner.run()
            except RunnerError as error:  # everything else works without a node
                log.error("cannot run Jobs on this host", error=str(error))

    async def _fail_with_store(self) -> None:
        """Exit when the store can no longer commit: only a restart reveals what the disk holds."""
        raise await self.server.deps.store.wait_failed()

    async def until(self, stop: asyncio.Event, *others: asyncio.Task[Any]) -> None:
        """Wait for the signal, for one of `others`, or for the first task to fail."""
        await until_stopped(stop, *self._tasks, *others)

    async def stop(self) -> None:
        """Stop controllers first, then the front, then the store."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.kubeconfig.unlink(missing_ok=True)
        await asyncio.gather(self._front.stop(), self.server.stop())

    def _write_kubeconfig(self, pki: Pki) -> None:
        import yaml

        text = yaml.safe_dump(pki.admin_kubeconfig(self.url), sort_keys=False)
        staged = self.kubeconfig.with_suffix(".partial")
        staged.unlink(missing_ok=True)
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        staged.rename(self.kubeconfig)


async def _check_setting(attributes: Attributes) -> None:
    """Refuse invalid values. Real API servers accept them, and they are ignored."""
    setting = attributes.object
    name = attributes.name or setting["metadata"].get("name", "")
    problems = validate_value(name, setting.get("value") or "")
    if problems:
        raise invalid(SETTING.group_kind, name, problems)
