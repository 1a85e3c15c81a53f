"""The kinds that every Kubernetes server has: their types as data, their defaults, rules and subresources by hand."""

from herder.engine.apiserver.builtin.catalogue import resources
from herder.engine.apiserver.builtin.data import DEFINITIONS
from herder.engine.apiserver.builtin.data import definition as definitions
from herder.engine.apiserver.builtin.types import BuiltinType, decode_as

__all__ = ["DEFINITIONS", "BuiltinType", "decode_as", "definitions", "resources"]
