"""Authentication: tokens checked against watched caches, logins, and the API group ext.cattle.io."""

from herder.gateway.identity.identity import Identified, Identity

__all__ = ["Identified", "Identity"]
