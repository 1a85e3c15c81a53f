"""Structural schemas of custom resources: pruning, defaulting, validation and rules, in the real server's words.

A schema is compiled once into Python functions and then applied to plain dicts. Everything here is pure: no I/O, no
clock. `check_structural` says what is wrong with a schema itself, before any object of it exists.
"""

from __future__ import annotations

from herder.engine.schema.compiled import CompiledSchema, compile_schema
from herder.engine.schema.nodes import unrecognized_formats
from herder.engine.schema.rule_compiler import RuleCompiler
from herder.engine.schema.structural import check_structural

__all__ = ["CompiledSchema", "RuleCompiler", "check_structural", "compile_schema", "unrecognized_formats"]
