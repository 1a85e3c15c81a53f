"""A cluster of the in-memory provider, as a user would write it."""

from herder.api.inmemory.manifest import in_memory_cluster, made, reference

__all__ = ["in_memory_cluster", "made", "reference"]
