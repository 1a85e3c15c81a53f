"""OpenAPI: /openapi/v2 and /openapi/v3, built on first request."""

from herder.engine.apiserver.openapi.serve import OpenApi

__all__ = ["OpenApi"]
