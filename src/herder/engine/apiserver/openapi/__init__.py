"""/openapi/v2 and /openapi/v3: the schemas of everything served, built when somebody asks."""

from herder.engine.apiserver.openapi.serve import OpenApi

__all__ = ["OpenApi"]
