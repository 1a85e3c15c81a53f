"""Structural schemas of custom resources: pruning, defaulting, validation and CEL rules.

Messages are those of kube-apiserver. A schema is compiled once into Python functions and then applied to plain dicts.
Everything is pure: no I/O, no clock. `check_structural` validates the schema itself, before any object uses it.
"""

from __future__ import annotations

from herder.engine.schema.compiled import CompiledSchema, compile_schema
from herder.engine.schema.nodes import unrecognized_formats
from herder.engine.schema.rules.compiler import RuleCompiler
from herder.engine.schema.structural import check_structural

__all__ = ["CompiledSchema", "RuleCompiler", "check_structural", "compile_schema", "unrecognized_formats"]
