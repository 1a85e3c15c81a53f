"""Downstream clusters: one connection each, and the observations made through it.

Each cluster has its own tasks, timeouts and concurrency limit, so one that does not respond does not affect the others.
Connections and observations without subscribers are closed.
"""

from herder.engine.runtime.remote.connection import Connector as Connector
from herder.engine.runtime.remote.remotes import RemotePerformer as RemotePerformer
from herder.engine.runtime.remote.remotes import Remotes as Remotes
