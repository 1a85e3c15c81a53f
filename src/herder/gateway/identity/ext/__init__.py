"""Kinds of ext.cattle.io/v1, stored as Secrets and ConfigMaps in namespace cattle-tokens."""

from herder.gateway.identity.ext.api import ExtApi

__all__ = ["ExtApi"]
