"""Built-in kinds of Kubernetes: generated types, and hand-written defaults, strategies and subresources."""

from herder.engine.apiserver.builtin.catalogue import resources
from herder.engine.apiserver.builtin.data import DEFINITIONS
from herder.engine.apiserver.builtin.data import definition as definitions
from herder.engine.apiserver.builtin.types import BuiltinType, decode_as

__all__ = ["DEFINITIONS", "BuiltinType", "decode_as", "definitions", "resources"]
