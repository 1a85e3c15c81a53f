"""Generate the objects of a provisioned cluster from its provisioning Cluster, in an order that is safe to write.

RKEControlPlane and RKECluster come first, then the Cluster API Cluster that refers to them, then templates before the
MachineDeployments that use them. Objects that the spec no longer describes are deleted last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from herder.api import gojson
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, SECRET_METADATA
from herder.api.capi.names import annotations_of, is_deleting
from herder.api.machines.drivers.registered import is_remote_driver
from herder.api.machines.kinds import DYNAMIC_SCHEMA, driver_of
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.reachability import server_url_problem
from herder.api.references.approvals import APPROVED, problem, with_record, with_target_uids
from herder.api.references.catalogue import SECRETS, VERSIONS, Target, field_references
from herder.api.rke.kinds import BEACON, BOOTSTRAP_TEMPLATE, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.sets import hash_of, owning_cluster, set_hash, with_set_labels
from herder.api.settings import SERVER_URL
from herder.api.writes import delete, object_patch, owner_reference, ref, with_owner
from herder.controllers.provisioning.cluster import machine_pools, objects, templates
from herder.controllers.provisioning.cluster.desired import Pool, Problem, checked_pools, pools_of, rke_config
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Delete, Parallel, Patch, Write, Writes
from herder.engine.runtime.view import View

GENERATED_FROM = "generated-from"  # index of objects generated from a provisioning Cluster
FIELD_MANAGER = "rke-cluster"
"""Field manager of generated objects. Never change it: apply removes only fields of the same manager."""
PRUNED = (MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, RKE_CLUSTER)


def generate(view: View, cluster: Object) -> Writes:
    """All writes for the cluster. Raises Problem: then nothing is written, and existing objects are kept."""
    _check_references(view, cluster)
    core = _core_cluster(view, cluster)
    pairs = [(pool, _config(view, pool)) for pool in checked_pools(cluster)]
    wanted = _DesiredObjects(view, cluster)
    wanted.add_cluster(core)
    wanted.add_pools(pairs)
    return (*wanted.steps, *_prune(view, cluster, wanted.names))


class _DesiredObjects:
    """Collects the writes in order, and the names of the objects that they apply."""

    def __init__(self, view: View, cluster: Object) -> None:
        self._view = view
        self._cluster = cluster
        self.steps: list[Parallel] = []
        self.names: set[tuple[Kind, str]] = set()

    def add_cluster(self, core: Object) -> None:
        cluster = self._cluster
        plane = self._view.get(CONTROL_PLANE, self._view.name)
        parts = [(CONTROL_PLANE, objects.control_plane(cluster, plane))]
        if not rke_config(cluster).get("infrastructureRef"):
            parts.append((RKE_CLUSTER, objects.infrastructure(cluster)))
        self._apply(parts, "control plane and infrastructure of the cluster")
        if plane is not None and (surplus := objects.surplus_fields(cluster, plane)):
            self._step([Patch(ref(CONTROL_PLANE, plane), surplus, "the Cluster does not have these fields")])
        self._apply([(CLUSTER, core), (BEACON, objects.beacon(cluster))], "Cluster API cluster and Beacon")

    def add_pools(self, pairs: list[tuple[Pool, Object | None]]) -> None:
        self._step(patch for pool, config in pairs for patch in _adopt_config(pool, config))
        by_template = {templates.bootstrap_template_name(pool): pool for pool, _ in pairs}
        machines = [(pool, _machine_template(self._view, pool, config)) for pool, config in pairs]
        template_objects = [(BOOTSTRAP_TEMPLATE, templates.bootstrap_template(pool)) for pool in by_template.values()]
        template_objects += [(pool.kinds.template, template) for pool, template in machines if template is not None]
        self._apply(template_objects, "templates of machine pools")
        deployments = [machine_pools.machine_deployment(pool, template) for pool, template in machines]
        self._apply([(MACHINE_DEPLOYMENT, deployment) for deployment in deployments], "a pool of machines")
        self._step(patch for pool, _ in pairs for patch in _first_replicas(self._view, pool))
        checks = [check for pool, _ in pairs if (check := machine_pools.health_check(pool)) is not None]
        self._apply([(MACHINE_HEALTH_CHECK, check) for check in checks], "replace unhealthy machines")

    def _apply(self, desired: Iterable[tuple[Kind, Object]], reason: str) -> None:
        meta = self._cluster["metadata"]
        named = [(kind, with_set_labels(obj, meta["namespace"], meta["name"])) for kind, obj in desired]
        for kind, obj in named:
            self._check_not_owned(kind, obj)
        self.names.update((kind, obj["metadata"]["name"]) for kind, obj in named)
        self._step(Apply(kind, obj, reason, manager=FIELD_MANAGER) for kind, obj in named)

    def _check_not_owned(self, kind: Kind, obj: Object) -> None:
        """Refuse an object of another cluster or of a user.

        Names are joined with dashes, so pool `b-c` of cluster `a` and pool `c` of cluster `a-b` would share objects:
        the first cluster keeps them.
        """
        name = obj["metadata"]["name"]
        existing = self._view.get(kind, name)
        if existing is not None and hash_of(existing) != hash_of(obj):
            owner = next(
                (f"belongs to cluster {key}" for key in owning_cluster(existing)), "was not created for this cluster"
            )
            raise Problem(f"{kind.kind} {self._view.namespace}/{name} {owner}; rename this cluster or its pool")

    def _step(self, writes: Iterable[Write]) -> None:
        if batch := tuple(writes):
            self.steps.append(Parallel(batch))


def _prune(view: View, cluster: Object, wanted: set[tuple[Kind, str]]) -> Iterator[Delete]:
    for kind in PRUNED:
        for obj in generated_objects(view, kind, cluster):
            if (kind, obj["metadata"]["name"]) not in wanted and not is_deleting(obj):
                yield delete(kind, obj, f"no longer part of {view.key}")


def generated_objects(view: View, kind: Kind, cluster: Object) -> list[Object]:
    """Generated objects of a kind, in the cluster's namespace.

    The hash joins name and namespace without a separator, so clusters of different namespaces can share it.
    """
    meta = cluster["metadata"]
    mark = set_hash(meta["namespace"], meta["name"])
    return view.select(kind, namespace=meta["namespace"], index=(GENERATED_FROM, mark))


def _core_cluster(view: View, cluster: Object) -> Object:
    """The Cluster API Cluster. Refuses one that another client created, or that an earlier cluster left behind: its
    machines may be another user's."""
    existing = view.get(CLUSTER, view.name)
    if existing is not None:
        if is_deleting(existing):
            raise Problem(f"Cluster {view.key} of {CLUSTER.group} is being deleted; it is created again afterwards")
        meta, owners = cluster["metadata"], existing["metadata"].get("ownerReferences") or ()
        uses_node_driver = any(own.get("controller") and own["uid"] == meta["uid"] for own in owners)
        if not uses_node_driver or set_hash(meta["namespace"], meta["name"]) not in hash_of(existing):
            raise Problem(f"metadata.name: another Cluster {view.key} of {CLUSTER.group} exists; rename this cluster")
    return objects.core_cluster(cluster, view.get(CONTROL_PLANE, view.name))


# --- schemas of node drivers ------------------------------------------------------------------------------------------


def fill_schemas(view: View, cluster: Object) -> tuple[Patch, ...]:
    """Record the driver's current schema in each new pool, which keeps it. Raises Problem."""
    pools = checked_pools(cluster)
    missing = [pool for pool in pools if pool.uses_node_driver and templates.schema_fields(pool) is None]
    if not missing:
        return ()
    found = {pool.position: _schema(view, pool) for pool in missing}
    filled = [
        {**pool.spec, "dynamicSchemaSpec": found[pool.position]} if pool.position in found else pool.spec
        for pool in pools
    ]
    spec = {**cluster["spec"], "rkeConfig": {**rke_config(cluster), "machinePools": filled}}
    return object_patch(
        PROVISIONING_CLUSTER, cluster, {**cluster, "spec": spec}, "record the schema of the node driver"
    )


def _schema(view: View, pool: Pool) -> str:
    name = schema_name(pool)
    is_served = view.get(DEFINITION, definition_of(DYNAMIC_SCHEMA)) is not None
    schema = view.get(DYNAMIC_SCHEMA, name) if is_served else None
    if schema is None:
        raise Problem(
            f"{pool.path}.machineConfigRef.kind: no node driver for {pool.config['kind']} (DynamicSchema {name} does "
            "not exist); activate its NodeDriver"
        )
    return gojson.marshal(schema.get("spec") or {}).decode()


def schema_name(pool: Pool) -> str:
    return str(pool.config["kind"]).lower()


# --- machine configs --------------------------------------------------------------------------------------------------


def _config(view: View, pool: Pool) -> Object | None:
    """The machine config of a pool; None if another provider has its own template."""
    if not pool.uses_node_driver:
        return None
    kind, name = pool.kinds.config, pool.config["name"]
    is_defined = view.get(DEFINITION, definition_of(kind)) is not None
    config = view.get(kind, name) if is_defined else None
    if config is None:
        missing = "does not exist" if is_defined else "is of a kind without an active NodeDriver"
        raise Problem(f"{pool.path}.machineConfigRef: {kind.kind} {view.namespace}/{name} {missing}")
    target = Target(kind.group, kind.plural, view.namespace, name)
    if reason := problem(pool.cluster, pool.config_path, target, config["metadata"]["uid"]):
        raise Problem(f"{pool.path}.machineConfigRef: {reason}")
    _check_config_owner(pool, config)
    _check_credential(view, pool)
    _check_reachability(view, pool)
    return config


def bind_references(view: View, cluster: Object) -> tuple[Patch, ...]:
    """Bind references to Secrets that were created after the Cluster to the Secrets that exist now."""

    def uid_of(target: Target) -> str:
        found = view.get(SECRET_METADATA, target.name, target.namespace) if target[:2] == SECRETS else None
        return str(found["metadata"]["uid"]) if found is not None else ""

    if (approvals := with_target_uids(cluster, uid_of)) is None:
        return ()
    marks = {APPROVED: annotations_of(with_record(cluster, approvals))[APPROVED]}
    patch = {"metadata": {"annotations": marks}}
    # With the resourceVersion, so that it never overwrites approvals that were recorded meanwhile.
    revision = cluster["metadata"]["resourceVersion"]
    return (Patch(ref(PROVISIONING_CLUSTER, cluster), patch, "a Secret that it names exists now", "", revision),)


def _check_references(view: View, cluster: Object) -> None:
    """Check references to kinds of other providers. Herder never reads these, so they are approved by name."""
    for reference in field_references(PROVISIONING_CLUSTER.group_kind, cluster, view.namespace):
        if reference.target.group not in VERSIONS and (reason := problem(cluster, *reference.key, "")):
            raise Problem(f"{reference.field}: {reason}")


def _check_config_owner(pool: Pool, config: Object) -> None:
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
    key = pool.credential_key
    if key is None:
        return
    secret = view.get(SECRET_METADATA, key.name, key.namespace)
    if secret is None:
        raise Problem(f"{pool.path}.cloudCredentialSecretName: Secret {key} does not exist")
    if reason := problem(pool.cluster, pool.credential_path, Target(*SECRETS, *key), secret["metadata"]["uid"]):
        raise Problem(f"{pool.path}.cloudCredentialSecretName: {reason}")


def _check_reachability(view: View, pool: Pool) -> None:
    """Create no machines that could not register. A pool that exists already may reach the manager in its own way."""
    driver = driver_of(pool.config["kind"])
    if view.get(MACHINE_DEPLOYMENT, pool.deployment) is not None or not is_remote_driver(driver):
        return
    if reason := server_url_problem(view.setting(SERVER_URL), f"machines of driver {driver}"):
        raise Problem(f"{pool.path}: {reason}")


def _adopt_config(pool: Pool, config: Object | None) -> tuple[Patch, ...]:
    """Make the cluster own the machine config, so that both are deleted together."""
    if config is None:
        return ()
    owned = with_owner(config, owner_reference(PROVISIONING_CLUSTER, pool.cluster, controller=True))
    return object_patch(pool.kinds.config, config, owned, "a machine pool uses it")


def unadopted_configs(view: View, cluster: Object) -> dict[Kind, list[Object]]:
    """Machine configs without an owner that the author of the cluster may use: its pools were never generated."""
    found: dict[Kind, list[Object]] = {}
    for pool in _readable_pools(cluster):
        kind, name = pool.kinds.config, pool.config["name"]
        config = view.get(kind, name) if view.get(DEFINITION, definition_of(kind)) is not None else None
        if config is None or is_deleting(config) or config["metadata"].get("ownerReferences"):
            continue
        target = Target(kind.group, kind.plural, view.namespace, name)
        configs = found.setdefault(kind, [])
        if config not in configs and not problem(cluster, pool.config_path, target, config["metadata"]["uid"]):
            configs.append(config)
    return found


def _first_replicas(view: View, pool: Pool) -> Iterator[Patch]:
    """Set the replicas once if the pool does not, and no admission webhook did."""
    deployment = view.get(MACHINE_DEPLOYMENT, pool.deployment)
    replicas = machine_pools.first_replicas(deployment) if deployment is not None else None
    if deployment is not None and replicas is not None:
        spec = {**(deployment.get("spec") or {}), "replicas": replicas}
        yield from object_patch(
            MACHINE_DEPLOYMENT, deployment, {**deployment, "spec": spec}, "the pool does not set its size"
        )


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


# --- watches ----------------------------------------------------------------------------------------------------------


def references_of(cluster: Object) -> Iterator[str]:
    """Index by machine configs, schemas and generated objects, whose kinds are discovered at run time."""
    meta = cluster["metadata"]
    yield f"{GENERATED_FROM} {set_hash(meta['namespace'], meta['name'])}"
    for pool in _readable_pools(cluster):
        yield f"{DYNAMIC_SCHEMA.kind} /{schema_name(pool)}"
        yield f"{pool.config['kind']} {meta['namespace']}/{pool.config['name']}"


def definitions_of(cluster: Object) -> Iterator[str]:
    """Index by the CRDs that its pools need."""
    yield definition_of(DYNAMIC_SCHEMA)
    for pool in _readable_pools(cluster):
        yield definition_of(pool.kinds.config)
        yield definition_of(pool.kinds.template)


def credentials_of(cluster: Object) -> Iterator[str]:
    """Index by cloud credential."""
    for pool in pools_of(cluster):
        if pool.credential_key is not None:
            yield str(pool.credential_key)


def _readable_pools(cluster: Object) -> Iterator[Pool]:
    return (
        pool
        for pool in pools_of(cluster)
        if pool.uses_node_driver and pool.config.get("kind") and pool.config.get("name")
    )
