"""From what is asked for to the writes that bring it about, in the order in which they are safe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from herder.api import gojson
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, SECRET_METADATA
from herder.api.capi.names import annotations_of, is_deleting
from herder.api.machines.kinds import DYNAMIC_SCHEMA
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.references.approvals import APPROVED, bound, problem, with_record
from herder.api.references.catalogue import SECRETS, VERSIONS, Target, field_references
from herder.api.rke.kinds import BEACON, BOOTSTRAP_TEMPLATE, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.sets import hash_of, made_from, marked, set_hash
from herder.api.writing import delete, object_patch, owner_reference, ref, with_owner
from herder.controllers.provisioning.generation import pools, templates, whole
from herder.controllers.provisioning.generation.asked import Pool, Problem, checked_pools, pools_of, rke_config
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Delete, Parallel, Patch, Write, Writes
from herder.engine.runtime.view import View

SET = "made-from"  # the index of what was made from a provisioning Cluster
PRUNED = (MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, RKE_CLUSTER)


def generate(view: View, cluster: Object) -> Writes:
    """Raises Problem: then nothing is written, and what is there stays."""
    _check_references(view, cluster)
    core = _core_cluster(view, cluster)
    pairs = [(pool, _config(view, pool)) for pool in checked_pools(cluster)]
    wanted = _Wanted(view, cluster)
    wanted.whole(core)
    wanted.pools(pairs)
    return (*wanted.steps, *_prune(view, cluster, wanted.names))


class _Wanted:
    """The steps so far, and the names of what they apply."""

    def __init__(self, view: View, cluster: Object) -> None:
        self._view = view
        self._cluster = cluster
        self.steps: list[Parallel] = []
        self.names: set[tuple[Kind, str]] = set()

    def whole(self, core: Object) -> None:
        cluster = self._cluster
        plane = self._view.get(CONTROL_PLANE, self._view.name)
        parts = [(CONTROL_PLANE, whole.control_plane(cluster, plane))]
        if not rke_config(cluster).get("infrastructureRef"):
            parts.append((RKE_CLUSTER, whole.infrastructure(cluster)))
        self._apply(parts, "what a cluster consists of")
        self._apply([(CLUSTER, core), (BEACON, whole.beacon(cluster))], "Cluster API brings its parts together")

    def pools(self, pairs: list[tuple[Pool, Object | None]]) -> None:
        self._step(patch for pool, config in pairs for patch in _take_over(pool, config))
        starts = {templates.bootstrap_template_name(pool): templates.bootstrap_template(pool) for pool, _ in pairs}
        machines = [(pool, _machine_template(self._view, pool, config)) for pool, config in pairs]
        made = [(BOOTSTRAP_TEMPLATE, template) for template in starts.values()]
        made += [(pool.kinds.template, template) for pool, template in machines if template is not None]
        self._apply(made, "what machines are made from")
        deployments = [pools.machine_deployment(pool, template) for pool, template in machines]
        self._apply([(MACHINE_DEPLOYMENT, deployment) for deployment in deployments], "a pool of machines")
        checks = [check for pool, _ in pairs if (check := pools.health_check(pool)) is not None]
        self._apply([(MACHINE_HEALTH_CHECK, check) for check in checks], "unhealthy machines are to be replaced")

    def _apply(self, objects: Iterable[tuple[Kind, Object]], reason: str) -> None:
        meta = self._cluster["metadata"]
        named = [(kind, marked(obj, meta["namespace"], meta["name"])) for kind, obj in objects]
        for kind, obj in named:
            self._check_free(kind, obj)
        self.names.update((kind, obj["metadata"]["name"]) for kind, obj in named)
        self._step(Apply(kind, obj, reason) for kind, obj in named)

    def _check_free(self, kind: Kind, obj: Object) -> None:
        """Names are joined with dashes, so pool `b-c` of cluster `a` and pool `c` of cluster `a-b` would share objects:
        the cluster that came first keeps them. What a user created by hand is never taken over."""
        name = obj["metadata"]["name"]
        there = self._view.get(kind, name)
        if there is not None and hash_of(there) != hash_of(obj):
            whose = next((f"belongs to cluster {key}" for key in made_from(there)), "was not created for this cluster")
            raise Problem(f"{kind.kind} {self._view.namespace}/{name} {whose}; rename this cluster or its pool")

    def _step(self, writes: Iterable[Write]) -> None:
        if together := tuple(writes):
            self.steps.append(Parallel(together))


def _prune(view: View, cluster: Object, wanted: set[tuple[Kind, str]]) -> Iterator[Delete]:
    for kind in PRUNED:
        for obj in made(view, kind, cluster):
            if (kind, obj["metadata"]["name"]) not in wanted and not is_deleting(obj):
                yield delete(kind, obj, f"{view.key} does not ask for it any more")


def made(view: View, kind: Kind, cluster: Object) -> list[Object]:
    meta = cluster["metadata"]
    return view.select(kind, index=(SET, set_hash(meta["namespace"], meta["name"])))


def _core_cluster(view: View, cluster: Object) -> Object:
    """A Cluster of that name that somebody else made is not taken over. Nor is what an earlier cluster of the name left
    behind: its machines may be another user's."""
    there = view.get(CLUSTER, view.name)
    if there is not None:
        if is_deleting(there):
            raise Problem(f"Cluster {view.key} of {CLUSTER.group} is being deleted; it is made anew when it is gone")
        meta, owners = cluster["metadata"], there["metadata"].get("ownerReferences") or ()
        is_ours = any(own.get("controller") and own["uid"] == meta["uid"] for own in owners)
        if not is_ours or set_hash(meta["namespace"], meta["name"]) not in hash_of(there):
            raise Problem(f"metadata.name: there is another Cluster {view.key} of {CLUSTER.group} already")
    return whole.core_cluster(cluster, view.get(CONTROL_PLANE, view.name))


# --- schemas of drivers ---------------------------------------------------------------------------------------------


def fill_schemas(view: View, cluster: Object) -> tuple[Patch, ...]:
    """Each pool keeps the fields that its driver had when it was made. Raises Problem."""
    asked = checked_pools(cluster)
    lacking = [pool for pool in asked if pool.is_ours and templates.schema_of(pool) is None]
    if not lacking:
        return ()
    found = {pool.position: _schema(view, pool) for pool in lacking}
    filled = [
        {**pool.spec, "dynamicSchemaSpec": found[pool.position]} if pool.position in found else pool.spec
        for pool in asked
    ]
    spec = {**cluster["spec"], "rkeConfig": {**rke_config(cluster), "machinePools": filled}}
    return object_patch(
        PROVISIONING_CLUSTER, cluster, {**cluster, "spec": spec}, "the fields of its driver as they are"
    )


def _schema(view: View, pool: Pool) -> str:
    name = schema_name(pool)
    known = view.get(DEFINITION, definition_of(DYNAMIC_SCHEMA)) is not None
    schema = view.get(DYNAMIC_SCHEMA, name) if known else None
    if schema is None:
        raise Problem(
            f"{pool.path}.machineConfigRef.kind: no driver makes {pool.config['kind']} (DynamicSchema {name} does "
            "not exist); activate its NodeDriver"
        )
    return gojson.marshalled(schema.get("spec") or {}).decode()


def schema_name(pool: Pool) -> str:
    return str(pool.config["kind"]).lower()


# --- configs --------------------------------------------------------------------------------------------------------


def _config(view: View, pool: Pool) -> Object | None:
    """What its machines are made from; None where another provider has a template for it."""
    if not pool.is_ours:
        return None
    kind, name = pool.kinds.config, pool.config["name"]
    is_defined = view.get(DEFINITION, definition_of(kind)) is not None
    config = view.get(kind, name) if is_defined else None
    if config is None:
        lacking = "does not exist" if is_defined else "is of a kind that no active NodeDriver makes"
        raise Problem(f"{pool.path}.machineConfigRef: {kind.kind} {view.namespace}/{name} {lacking}")
    target = Target(kind.group, kind.plural, view.namespace, name)
    if why := problem(pool.cluster, pool.config_path, target, config["metadata"]["uid"]):
        raise Problem(f"{pool.path}.machineConfigRef: {why}")
    _check_owners(pool, config)
    _check_credential(view, pool)
    return config


def bind_references(view: View, cluster: Object) -> tuple[Patch, ...]:
    """Bind references to Secrets that were created after the Cluster to the Secrets that exist now."""

    def uid_of(target: Target) -> str:
        found = view.get(SECRET_METADATA, target.name, target.namespace) if target[:2] == SECRETS else None
        return str(found["metadata"]["uid"]) if found is not None else ""

    if (approvals := bound(cluster, uid_of)) is None:
        return ()
    marks = {APPROVED: annotations_of(with_record(cluster, approvals))[APPROVED]}
    patch = {"metadata": {"annotations": marks}}
    # Locked, so that it never overwrites the record of a reference that was written meanwhile.
    revision = cluster["metadata"]["resourceVersion"]
    return (Patch(ref(PROVISIONING_CLUSTER, cluster), patch, "a Secret that it names exists now", "", revision),)


def _check_references(view: View, cluster: Object) -> None:
    """References to kinds of other providers: nothing here reads these, so they are approved by name alone."""
    for reference in field_references(PROVISIONING_CLUSTER.group_kind, cluster, view.namespace):
        if reference.target.group not in VERSIONS and (why := problem(cluster, *reference.key, "")):
            raise Problem(f"{reference.field}: {why}")


def _check_owners(pool: Pool, config: Object) -> None:
    meta = pool.cluster["metadata"]
    for reference in config["metadata"].get("ownerReferences") or ():
        group_kind = (reference["apiVersion"].rpartition("/")[0], reference["kind"])
        is_cluster = group_kind == PROVISIONING_CLUSTER.group_kind
        if (is_cluster or reference.get("controller")) and reference["uid"] != meta["uid"]:
            owner = f"cluster {reference['name']}" if is_cluster else f"{reference['kind']} {reference['name']}"
            raise Problem(
                f"{pool.path}.machineConfigRef: {config['kind']} {config['metadata']['name']} cannot be used because "
                f"it is already owned by {owner}; each cluster has configs of its own"
            )


def _check_credential(view: View, pool: Pool) -> None:
    place = pool.credential_place
    if place is None:
        return
    secret = view.get(SECRET_METADATA, place.name, place.namespace)
    if secret is None:
        raise Problem(f"{pool.path}.cloudCredentialSecretName: Secret {place} does not exist")
    if why := problem(pool.cluster, pool.credential_path, Target(*SECRETS, *place), secret["metadata"]["uid"]):
        raise Problem(f"{pool.path}.cloudCredentialSecretName: {why}")


def _take_over(pool: Pool, config: Object | None) -> tuple[Patch, ...]:
    """A config goes with its cluster."""
    if config is None:
        return ()
    owned = with_owner(config, owner_reference(PROVISIONING_CLUSTER, pool.cluster, controller=True))
    return object_patch(pool.kinds.config, config, owned, "a pool is made from it")


def _machine_template(view: View, pool: Pool, config: Object | None) -> Object | None:
    if config is None:
        return None
    kind, template = pool.kinds.template, templates.machine_template(pool, config)
    if view.get(DEFINITION, definition_of(kind)) is None:
        raise Problem(f"{pool.path}.machineConfigRef.kind: {kind.kind} is not defined; activate its NodeDriver")
    view.watch(kind)
    return template


def definition_of(kind: Kind) -> str:
    return f"{kind.plural}.{kind.group}"


# --- what sets it off -----------------------------------------------------------------------------------------------


def references_of(cluster: Object) -> Iterator[str]:
    """Indexer: the objects of kinds met at run time that its pools are made from, and those made from it."""
    meta = cluster["metadata"]
    yield f"{SET} {set_hash(meta['namespace'], meta['name'])}"
    for pool in _readable_pools(cluster):
        yield f"{DYNAMIC_SCHEMA.kind} /{schema_name(pool)}"
        yield f"{pool.config['kind']} {meta['namespace']}/{pool.config['name']}"


def definitions_of(cluster: Object) -> Iterator[str]:
    """Indexer: the definitions that its pools need."""
    yield definition_of(DYNAMIC_SCHEMA)
    for pool in _readable_pools(cluster):
        yield definition_of(pool.kinds.config)
        yield definition_of(pool.kinds.template)


def credentials_of(cluster: Object) -> Iterator[str]:
    """Indexer."""
    for pool in pools_of(cluster):
        if pool.credential_place is not None:
            yield str(pool.credential_place)


def _readable_pools(cluster: Object) -> Iterator[Pool]:
    return (pool for pool in pools_of(cluster) if pool.is_ours and pool.config.get("kind") and pool.config.get("name"))
