"""The creator of a cluster, who becomes its owner."""

from __future__ import annotations

from herder.api.machines.credentials import CREATOR
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind, Object

SELF_REVIEW = Kind("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False)
SUPERUSERS = "system:masters"


async def own_user(client: Client) -> Object:
    """The user as the API server sees it."""
    review = {"apiVersion": SELF_REVIEW.api_version, "kind": SELF_REVIEW.kind}
    found: Object = (await client.create(SELF_REVIEW.resource, review))["status"]["userInfo"]
    return found


async def creator_annotation(client: Client) -> dict[str, str]:
    """Annotation of a new cluster with its creator.

    The embedded server sets it. Other API servers only check that it names the author, and without it no user would own
    the cluster. Administrators of the API server itself are no users of the manager.
    """
    user = await own_user(client)
    name = str(user.get("username") or "")
    is_user = name and not name.startswith("system:") and SUPERUSERS not in (user.get("groups") or ())
    return {CREATOR: name} if is_user else {}
