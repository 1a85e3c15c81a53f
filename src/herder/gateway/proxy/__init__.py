"""The way into managed clusters: requests to their APIs, as the user who asks."""

from herder.gateway.proxy.channels import dial_tcp
from herder.gateway.proxy.local import InProcess, Remote
from herder.gateway.proxy.proxy import ClusterProxy
from herder.gateway.proxy.targets import Target

__all__ = ["ClusterProxy", "InProcess", "Remote", "Target", "dial_tcp"]
