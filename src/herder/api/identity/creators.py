"""Creator ownership of clusters: the annotation with the creator, which users cannot write themselves."""

from __future__ import annotations

from herder.api.capi.names import annotations_of
from herder.api.identity.builtin_roles import OWNER
from herder.api.machines.credentials import CREATOR
from herder.api.management.kinds import CLUSTER_BINDING
from herder.api.management.names import PREFIX
from herder.engine.meta.kinds import Object

CREATOR_BOUND = (
    f"{PREFIX}creator-bound"  # "true" once the creator became owner, so that revoked rights are not granted again
)
_BINDING = f"creator-{OWNER}"


def with_protected_annotations(obj: Object, old: Object | None, user: str) -> Object:
    """Return a cluster as this user may write it: annotations of the manager are kept, and who creates it is its
    creator.
    """
    given, before = annotations_of(obj), annotations_of(old) if old else {CREATOR: user}
    protected = {name: value for name, value in before.items() if _is_ours(name)}
    others = {name: value for name, value in given.items() if not _is_ours(name)}
    wanted = {**others, **protected}
    return obj if wanted == given else {**obj, "metadata": {**obj["metadata"], "annotations": wanted}}


def _is_ours(annotation: str) -> bool:
    return annotation == CREATOR or annotation.startswith(PREFIX)


def creator_binding(cluster: str, creator: str) -> Object:
    return {
        "apiVersion": CLUSTER_BINDING.api_version,
        "kind": CLUSTER_BINDING.kind,
        "metadata": {"name": _BINDING, "namespace": cluster},
        "clusterName": cluster,
        "roleTemplateName": OWNER,
        "userName": creator,
    }
