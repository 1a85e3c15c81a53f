"""Checks of a cluster on which `herder run` is to run. They only read, review access and apply with dryRun."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

from herder.api.capi.core import CRD, DEPLOYMENT, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Mode
from herder.app.core.detection import CoreDetector
from herder.app.doctor.finding import Finding, failed, ok, warning
from herder.app.doctor.rights import check_rights
from herder.app.host.process import wall_clock
from herder.app.install import INSTALLER, definitions_of
from herder.app.machine_provider import provide_machines
from herder.app.manager import Roles
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.gateway.webhooks.configurations import Url

OLDEST_KUBERNETES, NEWEST_TESTED = (1, 30), (1, 36)
SERVICES = GroupVersionResource("", "v1", "services")
RANCHER = ("cattle-system", "rancher")
REQUIRED = {
    "apiextensions.k8s.io/v1": ("customresourcedefinitions",),
    "admissionregistration.k8s.io/v1": ("validatingadmissionpolicies", "validatingwebhookconfigurations"),
    "authorization.k8s.io/v1": ("selfsubjectaccessreviews", "subjectaccessreviews"),
    "coordination.k8s.io/v1": ("leases",),
}
UNSEEN = "(cannot read:"  # in the reason of a verdict on other cores
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Flags of `herder run`."""

    namespace: str = "herder-system"
    core: str = Mode.AUTO.value
    machines: bool | None = None
    gateway: bool = True
    webhook_url: str = ""
    in_cluster: bool = False  # webhooks are called through a Service
    before_install: bool = True
    """Whether rights and CRDs are checked with the account that installs the manager, and its webhooks' address."""

    @property
    def parts(self) -> list[str]:
        """The parts of the manager that the flags enable, by the names of their rights."""
        enabled = {
            "core": self.core != Mode.EXTERNAL.value,
            "machines": self.machines is not False,
            "gateway": self.gateway,
        }
        return ["base", *(part for part, is_enabled in enabled.items() if is_enabled)]


async def examine_cluster(client: Client, options: ClusterOptions) -> AsyncIterator[Finding]:
    """Checks after the first make sense only if the API server answers."""
    try:
        version: Object = await client.document("/version")
    except (StatusError, OSError) as error:
        advice = "check the address, CA and credentials of the kubeconfig"
        yield failed("API server", f"does not answer: {error}", advice)
        return
    yield check_version(str(version.get("gitVersion") or "unknown"))
    yield await _guarded("APIs", lambda: check_apis(client))
    if options.before_install:
        yield await _guarded("rights", lambda: check_rights(client, options.parts, options.namespace))
    detector = CoreDetector(client, Mode(options.core), clock=wall_clock)
    core = machines = False

    async def check_core() -> Finding:
        nonlocal core
        verdict = await detector.look()
        core = verdict.run
        message, _, advice = verdict.reason.partition(". ")
        if verdict.conflict:
            return failed("Cluster API core", message, advice)
        if not core and options.core == Mode.AUTO:
            return warning("Cluster API core", message, "remove it if Herder's core is to run instead")
        if UNSEEN in message:
            return warning("Cluster API core", message, "use a user with the rights of the install")
        return ok("Cluster API core", message)

    async def check_machines() -> Finding:
        nonlocal machines
        machines = await provide_machines(client, options.machines)
        if not machines and options.machines is None:
            advice = "stop that manager, and pass --machines, if Herder is to create machines"
            return warning("machine provider", "the NodeDrivers belong to another manager, such as Rancher", advice)
        return ok("machine provider", "runs" if machines else "disabled by --no-machines")

    yield await _guarded("Cluster API core", check_core)
    yield await _guarded("machine provider", check_machines)
    yield await _guarded("Rancher", lambda: check_rancher(client), optional=True)
    roles = Roles(core=core, machines=machines, gateway=options.gateway)
    if options.before_install:
        yield await _guarded("CRDs", lambda: check_definitions(client, definitions_of(roles)))
    others = check_other_webhooks(client, definitions_of(roles))
    yield await _guarded("webhooks of others", lambda: others, optional=True)
    if options.before_install:
        yield await check_webhook_address(options)


async def _guarded(name: str, check: Callable[[], Awaitable[Finding]], *, optional: bool = False) -> Finding:
    """`optional`: the manager itself needs no right to read what is checked."""
    try:
        return await check()
    except Forbidden as error:
        finding = failed(name, f"cannot be checked: {error}", "use a user with the rights of the install")
        return finding.as_warning() if optional else finding
    except (StatusError, OSError) as error:
        return failed(name, f"cannot be checked: {error}", "try again")


def check_version(version: str) -> Finding:
    name = "API server"
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if numbers is None:
        return warning(name, f"Kubernetes {version}: unknown version", "use a release of Kubernetes")
    found, oldest, newest = tuple(map(int, numbers.groups())), *map(_dotted, (OLDEST_KUBERNETES, NEWEST_TESTED))
    if found < OLDEST_KUBERNETES:
        return failed(name, f"Kubernetes {version} is too old", f"upgrade it to {oldest} or newer")
    if found > NEWEST_TESTED:
        return warning(name, f"Kubernetes {version} is newer than {newest}, the last version that was tested")
    return ok(name, f"Kubernetes {version}")


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


async def check_apis(client: Client) -> Finding:
    missing = []
    for group, resources in REQUIRED.items():
        try:
            served = {each["name"] for each in (await client.document(f"/apis/{group}"))["resources"]}
        except NotFound:
            served = set()
        missing += [f"{resource}.{group}" for resource in resources if resource not in served]
    if missing:
        return failed("APIs", f"not served: {', '.join(missing)}", "enable them with --runtime-config, or upgrade")
    return ok("APIs", "all that Herder needs are served")


async def check_rancher(client: Client) -> Finding:
    namespace, name = RANCHER
    try:
        found = await client.get(DEPLOYMENT.resource, name, namespace=namespace)
    except NotFound:
        return ok("Rancher", "not installed")
    if (found.get("spec") or {}).get("replicas", 1) == 0:
        return warning("Rancher", f"Deployment {namespace}/{name} is scaled to zero", "keep it that way")
    message = f"Deployment {namespace}/{name} runs; two managers would reconcile the same Clusters"
    advice = f"use another cluster, or stop it: kubectl -n {namespace} scale deployment {name} --replicas 0"
    return failed("Rancher", message, advice)


async def check_definitions(client: Client, definitions: Iterable[Object]) -> Finding:
    """Apply those that exist already with dryRun: the API server knows best what it refuses."""
    existing = {crd["metadata"]["name"]: crd for crd in (await client.list_all(CRD.resource)).items}
    wanted = [definition for definition in definitions if definition["metadata"]["name"] in existing]
    refused, foreign = [], []
    for definition in wanted:
        name = definition["metadata"]["name"]
        try:
            await client.apply(CRD.resource, definition, field_manager=INSTALLER, dry_run=True)
        except Forbidden:
            raise
        except StatusError as error:
            refused.append(f"{name}: {error.message}")
        managers = {entry.get("manager") for entry in existing[name]["metadata"].get("managedFields") or ()}
        if INSTALLER not in managers:
            foreign.append(name)
    if refused:
        message = f"{len(refused)} existing CRDs are incompatible: {_first(refused)}"
        return failed("CRDs", message, "migrate their objects to the versions of Herder, or use another cluster")
    if foreign:
        message = f"{len(foreign)} CRDs were installed by others, and Herder would change them: {_first(foreign)}"
        return warning("CRDs", message, "check that nothing else on this cluster depends on them")
    return ok("CRDs", f"{len(wanted)} exist, and can be updated" if wanted else "none exists yet")


def _first(texts: list[str]) -> str:
    more = len(texts) - _SHOWN
    return "; ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


async def check_other_webhooks(client: Client, definitions: Iterable[Object]) -> Finding:
    """Webhooks that fail closed, for kinds that Herder writes, but whose Service does not exist."""
    name = "webhooks of others"
    groups = {definition["spec"]["group"] for definition in definitions} | {CRD.group, "*"}
    broken = []
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        for configuration in (await client.list_all(kind.resource)).items:
            for webhook in configuration.get("webhooks") or ():
                if _concerns(webhook, groups) and not await _has_service(client, webhook):
                    broken.append(f"{kind.kind} {configuration['metadata']['name']}")
    if broken:
        message = f"writes would fail, because the Services of these do not exist: {_first(sorted(set(broken)))}"
        return failed(name, message, "start their programs again, or delete the configurations that are left over")
    return ok(name, "none is in the way")


def _concerns(webhook: Object, groups: set[str]) -> bool:
    rules = webhook.get("rules") or ()
    fails_closed = webhook.get("failurePolicy", "Fail") == "Fail"
    return fails_closed and any(groups & set(rule.get("apiGroups") or ()) for rule in rules)


async def _has_service(client: Client, webhook: Object) -> bool:
    service = (webhook.get("clientConfig") or {}).get("service")
    if not service:
        return True  # a URL, which only the API server can try
    try:
        await client.get(SERVICES, service["name"], namespace=service["namespace"])
    except NotFound:
        return False
    return True


async def check_webhook_address(options: ClusterOptions) -> Finding:
    """Only the API server can try the address; this finds what cannot work."""
    name = "webhook address"
    if not options.webhook_url:
        if options.in_cluster:
            return ok(name, f"the Service herder-webhooks in namespace {options.namespace}")
        advice = "pass --webhook-url https://HOST:PORT, an address that the API server reaches"
        return warning(name, "not given; without it, herder run needs --no-webhooks or --in-cluster", advice)
    try:
        (host,) = Url(options.webhook_url).names
    except ValueError as error:
        return failed(name, f"--webhook-url: {error}", "correct it")
    try:
        found = await asyncio.to_thread(socket.getaddrinfo, host, None)
    except OSError as error:
        return warning(name, f"{host} cannot be resolved here: {error}", "check that the API server can resolve it")
    addresses = sorted({str(each[4][0]) for each in found})
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        message = f"{host} is a loopback address: the API server reaches it only if it runs on the same host"
        return warning(name, message, "use an address of this host that the API server reaches")
    return ok(name, f"{options.webhook_url} ({', '.join(addresses)})")
