"""JSON patch helpers for mutating policies."""

from __future__ import annotations

from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.types import STRING

library = Library()
library.function("jsonpatch.escapeKey", STRING, returns=STRING, linear=True)(
    lambda key: key.replace("~", "~0").replace("/", "~1")
)
