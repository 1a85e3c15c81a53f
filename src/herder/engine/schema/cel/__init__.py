"""CEL as in Kubernetes 1.36: validation rules of custom resources, matchConditions, admission policies.

    env = rule_env(schema, resource_root=True)              # declares `self` and `oldSelf`
    program = compile("self.replicas <= self.maxReplicas", env)
    program.result_type.kind == "bool"
    program.evaluate({"self": {"replicas": 1, "maxReplicas": 3}})   # → True

Values are plain Python (dict, list, str, bytes, int, float, bool, None) plus the small classes of `values`. Everything
is pure and uses only the standard library.
"""

from __future__ import annotations

from herder.engine.schema.cel.check.schema_types import schema_type
from herder.engine.schema.cel.env import Env, admission_env, rule_env, rule_env_of_type
from herder.engine.schema.cel.errors import (
    BudgetExceeded,
    CelError,
    CheckError,
    CompileError,
    EvaluationError,
    ParseError,
)
from herder.engine.schema.cel.program import PER_CALL_BUDGET, Program, compile
from herder.engine.schema.cel.types import Type

__all__ = [
    "PER_CALL_BUDGET",
    "BudgetExceeded",
    "CelError",
    "CheckError",
    "CompileError",
    "Env",
    "EvaluationError",
    "ParseError",
    "Program",
    "Type",
    "admission_env",
    "compile",
    "rule_env",
    "rule_env_of_type",
    "schema_type",
]
