"""Cluster proxy: forwards requests to managed clusters, as the authenticated user."""

from herder.gateway.proxy.local import InProcess, Remote
from herder.gateway.proxy.proxy import ClusterProxy
from herder.gateway.proxy.targets import Target
from herder.gateway.proxy.upstream.channel import dial_tcp

__all__ = ["ClusterProxy", "InProcess", "Remote", "Target", "dial_tcp"]
