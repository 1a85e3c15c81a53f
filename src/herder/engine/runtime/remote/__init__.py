"""Downstream clusters: one connection each, what is observed of them, and how long they have been silent.

Each cluster has its own tasks, its own time limits and its own share of requests, so one that does not answer costs
the others nothing. What nobody asks for is not kept: neither what is seen of a cluster nor the connection to it.
"""

from herder.engine.runtime.remote.connection import Connector as Connector
from herder.engine.runtime.remote.remotes import RemotePerformer as RemotePerformer
from herder.engine.runtime.remote.remotes import Remotes as Remotes
