"""Custom resources: what a definition must be, what it serves, and the controller that keeps both together."""

from herder.engine.apiserver.crds.controller import CrdController
from herder.engine.apiserver.crds.resource import resource_from_crd
from herder.engine.apiserver.crds.strategy import DefinitionStrategy

__all__ = ["CrdController", "DefinitionStrategy", "resource_from_crd"]
