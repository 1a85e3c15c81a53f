"""One look at a control plane: who begins it, whom its machines join, and which tier is brought to its plans now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from herder.api.capi.names import annotations_of, is_paused
from herder.api.management import syncing
from herder.api.rke import names
from herder.api.rke.distributions import release_in, release_of, skips
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.writing import ref
from herder.controllers.planner import messages, tiers
from herder.controllers.planner.distributions.interface import ClusterInputs, ConfigError, Distribution, Roles
from herder.controllers.planner.election import LOST, elect
from herder.controllers.planner.entries import Entry, entries_named
from herder.controllers.planner.inputs import Lacking, cluster_inputs
from herder.controllers.planner.joining import Servers, host_of, learned
from herder.controllers.planner.machine_inputs import machine_inputs
from herder.controllers.planner.rendering import Desired, Request, common_digest
from herder.controllers.planner.resting import Resting
from herder.controllers.planner.stranded import release_leaving_members
from herder.controllers.planner.tiers import Progress, Surroundings, Tier, bring
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Effect, Parallel, Patch, Write, effect_reason
from herder.engine.runtime.view import View


@dataclass(frozen=True)
class Scene:
    """What a pass looks at."""

    view: View
    control_plane: Object
    cluster: Object  # Cluster API's
    distribution: Distribution
    machines: int  # of the cluster
    entries: Sequence[Entry]  # those with a plan Secret that are looked at
    resting: Resting = field(default_factory=dict)  # workers with a plan that need not be

    @property
    def spec(self) -> Object:
        found: Object = self.control_plane["spec"]
        return found

    @property
    def status(self) -> Object:
        return self.control_plane.get("status") or {}

    @property
    def strategy(self) -> Mapping[str, Any]:
        return self.spec.get("upgradeStrategy") or {}

    @property
    def initialized(self) -> bool:
        return bool((self.status.get("initialization") or {}).get("controlPlaneInitialized"))

    @property
    def begun(self) -> bool:
        """Whether some machine of this cluster could be joined once. It is written down with the first join URL."""
        endpoint = self.spec.get("controlPlaneEndpoint") or {}
        joinable = any(entry.join_url for entry in self.entries)
        return bool(endpoint.get("host")) or self.initialized or joinable or bool(self.resting)

    def living(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry.is_deleting]


@dataclass(frozen=True)
class Standing:
    """Where a machine stands, for the condition on it: nothing left to say means that it is as it should be."""

    entry: Entry
    details: Sequence[str] = ()


@dataclass
class Result:
    """What came of a pass. `waiting` says why it ended before everything was as it should be."""

    writes: list[Write | Parallel] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    unfinished: bool = False  # more is decided in the next pass
    waiting: str = ""
    error: str = ""
    standings: list[Standing] = field(default_factory=list)
    provisioned: bool = False  # there are machines enough to begin with
    bootstrapped: bool = False
    unstable: bool = False
    initialized: bool | None = None  # what it is to be from now on
    wake_at: datetime | None = None
    plans: bool = False  # among the writes is a plan: it must be this planner's turn


class _Ends(Exception):
    """The pass goes no further: nothing that comes later may be done before this."""


class _Again(Exception):
    """What was written is what the rest depends on: it is seen in the next pass, and nothing is told until then."""


def plan(scene: Scene) -> Result:
    result = Result()
    try:
        for step in (_learn, _sane, _not_lower, _no_skip, _tiers):
            step(scene, result)
    except _Again:
        result.unfinished = True
    except _Ends as ended:
        result.waiting = str(ended)
    except Lacking as lacking:
        results = (scene.view.result(effect.key) for effect in lacking.effects)
        result.waiting = effect_reason(str(lacking), *results)
        result.effects += lacking.effects
    except ConfigError as error:
        result.error = str(error)
    return result


# --- before anything is planned -------------------------------------------------------------------------------------


def _learn(scene: Scene, result: Result) -> None:
    """What machines told of themselves. Plans follow from it, so they wait until it is written down."""
    port = scene.distribution.supervisor_port
    news = [found for entry in scene.entries if (found := learned(entry, port))] or _endpoint(scene)
    if news:
        result.writes += [Parallel(tuple(news))]
        raise _Again


def _endpoint(scene: Scene) -> list[Patch]:
    """Where the cluster's API answers: told with the first machine that can be joined, kept for as long as it serves.
    When it goes, another takes its place."""
    known = (scene.spec.get("controlPlaneEndpoint") or {}).get("host")
    ranked = sorted(scene.entries, key=lambda entry: (not entry.is_init, entry.name))
    serving = [host_of(entry.join_url) for entry in ranked if entry.is_joinable]
    beginning = [host_of(entry.join_url) for entry in ranked if entry.is_init and entry.join_url and not known]
    hosts = serving or beginning
    if not hosts or known in hosts:
        return []
    endpoint = {"host": hosts[0], "port": scene.distribution.api_port}
    why = "where the cluster's API answers"
    return [Patch(ref(CONTROL_PLANE, scene.control_plane), {"spec": {"controlPlaneEndpoint": endpoint}}, why)]


def _sane(scene: Scene, result: Result) -> None:
    roles = [entry.roles for entry in scene.living()]
    complete = any(each.etcd for each in roles) and any(each.control_plane for each in roles)
    if not complete or not (scene.resting or any(each.worker for each in roles)):
        result.unstable = True
        result.initialized = False if scene.initialized else None
        forced = release_leaving_members(scene.view, scene.entries)
        result.writes += forced.writes
        raise _Ends("waiting for all etcd machines to be deleted" if forced.leaving else messages.NO_MACHINES)
    result.provisioned = True
    if is_paused(scene.cluster, scene.control_plane):
        raise _Ends(messages.PAUSED)
    touched = scene.begun or any(entry.joined_to for entry in scene.entries)
    if touched and not any(entry.roles.etcd and entry.plan.has_plan for entry in scene.entries):
        result.unstable = True
        raise _Ends(LOST)


def _not_lower(scene: Scene, _result: Result) -> None:
    """What a newer version has written an older one may not be able to read. Only servers write: a worker that reports
    a version of the future must not keep the whole cluster from being planned."""
    wanted = scene.spec.get("kubernetesVersion") or ""
    known = [str((scene.status.get("appliedSpec") or {}).get("kubernetesVersion") or "")]
    known += [str(entry.node_info.get("kubeletVersion") or "") for entry in scene.living() if entry.roles.is_server]
    highest = max(known, key=_order)
    if _order(highest) > _order(wanted):
        raise ConfigError(
            f"spec.kubernetesVersion: {wanted} is lower than {highest}, which the cluster has; go back, or restore "
            "a snapshot of the older version"
        )


def _no_skip(scene: Scene, _result: Result) -> None:
    """What servers have stored is converted by each minor version for the next one. Workers are not asked: one that
    reports an old kubelet must not keep the whole cluster from being upgraded, and a guard looks at its own plan."""
    wanted = scene.spec.get("kubernetesVersion") or ""
    known = [release_of(str((scene.status.get("appliedSpec") or {}).get("kubernetesVersion") or ""))]
    for entry in scene.living():
        if entry.roles.is_server:
            known += [release_of(str(entry.node_info.get("kubeletVersion") or "")), release_in(entry.plan.applied_plan)]
    found = [each for each in known if each is not None]
    if found and (reason := skips(min(found), wanted, annotations_of(scene.control_plane))):
        raise ConfigError(f"spec.kubernetesVersion: {reason}")


def _order(version: str) -> tuple[int, ...]:
    """What is no version is the lowest."""
    return release_of(version) or ()


# --- tier by tier ---------------------------------------------------------------------------------------------------


def _tiers(scene: Scene, result: Result) -> None:
    """Servers first, since the others join them. What is wrong with single machines is told when all else is done."""
    around = _surroundings(scene)
    init = _init_node(scene, result)
    result.bootstrapped = True
    ignored = [*_servers(scene, around, init, result)]
    if not any(entry.is_joinable for entry in scene.entries):
        raise _Ends(messages.NO_CONTROL_PLANE)
    if not scene.initialized:
        result.initialized = True
        raise _Ends(messages.INITIALIZING)
    ignored += _workers(scene, around, result)
    if problem := next(filter(None, ignored), ""):
        raise _Ends(problem)


def _servers(scene: Scene, around: Surroundings, init: Entry, result: Result) -> Iterator[str]:
    """One with etcd at a time, whichever tier it is in: who is down in one counts in the other."""
    strategy = scene.strategy
    drain, concurrency = strategy.get("controlPlaneDrainOptions") or {}, strategy.get("controlPlaneConcurrency")
    etcd = [entry for entry in scene.living() if entry.roles.etcd]
    first, joining = [entry for entry in etcd if entry is init], [entry for entry in etcd if entry is not init]
    wrong = _bring(Tier(tiers.BOOTSTRAP, first, etcd, drain=drain), around, result)
    if not init.join_url:
        raise _Ends(f"{wrong} and join url to be available on bootstrap node" if wrong else messages.NO_JOIN_URL)
    yield wrong
    yield _bring(Tier(tiers.ETCD, joining, etcd, drain=drain), around, result)
    planes = [entry for entry in scene.living() if entry.roles.control_plane]
    others = [entry for entry in planes if entry is not init]
    yield _bring(Tier(tiers.CONTROL_PLANE, others, planes, str(concurrency or "1"), drain), around, result)


def _workers(scene: Scene, around: Surroundings, result: Result) -> Iterator[str]:
    strategy = scene.strategy
    drain, concurrency = strategy.get("workerDrainOptions") or {}, str(strategy.get("workerConcurrency") or "1")
    left_alone = {rest: keys for rest, keys in scene.resting.items() if around.leaves_alone(rest)}
    wanted = [key for rest, keys in scene.resting.items() if rest not in left_alone for key in keys]
    workers = [entry for entry in scene.living() if entry.roles.only_worker and not entry.is_init]
    workers = sorted([*workers, *entries_named(scene.view, wanted)], key=lambda entry: entry.name)
    for windows in (False, True):
        members = [entry for entry in workers if entry.plan.is_windows is windows]
        resting = sum(len(keys) for rest, keys in left_alone.items() if rest.windows is windows)
        tier = Tier(tiers.WORKER, members, members, concurrency, drain, 5 if windows else 1, resting=resting)
        yield _bring(tier, around, result)


def _bring(tier: Tier, around: Surroundings, result: Result) -> str:
    """What is wrong with machines of the tier but holds up nobody; it ends the pass where the tier is not done."""
    progress = bring(tier, around)
    result.writes += [Parallel(tuple(progress.writes))] if progress.writes else []
    result.writes += [Parallel(tuple(progress.marks))] if progress.marks else []
    result.plans = result.plans or bool(progress.writes)
    _remember(progress, around, result)
    if waiting := progress.waiting(tier.name):
        raise _Ends(waiting)
    return progress.ignored(tier.name)


def _remember(progress: Progress, around: Surroundings, result: Result) -> None:
    for entry in (*progress.uncordoning, *progress.draining, *progress.configuring):
        result.standings.append(Standing(entry, progress.details[entry.name]))
    result.standings += [Standing(entry) for entry in progress.ready]
    wakes = [due for entry in progress.configuring if (due := messages.speaks_up_at(entry)) and due > around.now]
    result.wake_at = min([*wakes, *([result.wake_at] if result.wake_at else [])], default=None)


def _init_node(scene: Scene, result: Result) -> Entry:
    designated = (scene.control_plane["metadata"].get("labels") or {}).get(names.INIT_NODE_MACHINE_ID, "")
    election = elect(scene.entries, designated, begun=scene.begun)
    result.writes += election.writes
    result.plans = result.plans or bool(election.writes)
    if election.writes:
        raise _Again
    if election.init is None:
        result.unstable = election.waiting == LOST
        raise _Ends(election.waiting)
    return election.init


def _surroundings(scene: Scene) -> Surroundings:
    view, distribution = scene.view, scene.distribution
    delivered = bool(scene.resting) or any(entry.plan.has_plan for entry in scene.entries)
    servers = Servers(scene.entries)
    outstanding = _outstanding(scene)
    cluster = cluster_inputs(
        view,
        scene.control_plane,
        distribution,
        begun=delivered,
        servers=servers.control_plane,
        comes_first=outstanding is not None,
    )
    _not_refused(scene, cluster)

    def desired(entry: Entry) -> Desired:
        joins = servers.joined_by(entry)
        if not joins and not entry.is_init:
            where = f"{view.namespace}/{entry.name}"
            raise Lacking(f"no suitable join URL found to join machine {where} to")
        return Desired(entry, Request.of(distribution, cluster, machine_inputs(view, entry, joins)))

    return Surroundings(
        desired=desired,
        version=cluster.version,
        agent_connected=bool(scene.status.get("agentConnected")),
        outstanding=outstanding,
        machines=scene.machines,
        now=view.now,
        common=common_digest(distribution, cluster.for_workers),
        joinable=servers.known,
    )


def _outstanding(scene: Scene) -> str | None:
    """A cluster whose control plane has answered is no longer a new one."""
    name, management = scene.spec.get("clusterName") or scene.view.name, scene.spec.get("managementClusterName")
    if scene.initialized or not management:
        return None
    return syncing.outstanding(scene.view, f"{scene.view.namespace}/{name}", management)


def _not_refused(scene: Scene, cluster: ClusterInputs) -> None:
    living = {f"machine {entry.name}": entry.roles for entry in scene.living()}
    living |= {"workers": Roles(worker=True)} if scene.resting else {}
    for who, roles in living.items():
        if why := scene.distribution.refusal(cluster, roles):
            raise ConfigError(f"{who}: {why}")
