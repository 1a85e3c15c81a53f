"""Events about a provisioned cluster, for controllers that see only its Cluster API objects."""

from __future__ import annotations

from herder.api.events import normal, warning
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.kinds import CONTROL_PLANE
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import NORMAL, Event, Events, Ref


def cluster_events(
    core: Object | None, control_plane: Object | None, reason: str, message: str, type_: str = NORMAL
) -> Events:
    """The Event about the RKEControlPlane, and the same about the provisioning Cluster.

    The provisioning Cluster is the owner of `core`, Cluster API's Cluster.
    """
    build = normal if type_ == NORMAL else warning
    events: Events = (build(CONTROL_PLANE, control_plane, reason, message),) if control_plane is not None else ()
    for owner in (core["metadata"].get("ownerReferences") or ()) if core is not None else ():
        if (owner["apiVersion"].partition("/")[0], owner["kind"]) == PROVISIONING_CLUSTER.group_kind and core:
            about = Ref(PROVISIONING_CLUSTER, owner["name"], core["metadata"]["namespace"])
            events += (Event(about, owner["uid"], reason, message, type_),)
    return events
