"""Kinds and labels of the Flock example: a Flock maintains a number of ConfigMaps with the same message."""

from __future__ import annotations

from herder.engine.meta.kinds import Kind

FLOCK = Kind("examples.herder.io", "v1", "Flock", "flocks")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
SECRET = Kind("", "v1", "Secret", "secrets")

FINALIZER = "examples.herder.io/flock"
FLOCK_LABEL = "examples.herder.io/flock"
CONTENT_LABEL = "examples.herder.io/content"
