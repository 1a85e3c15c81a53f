"""CustomResourceDefinitions: validation, the resources they serve, and the controller that establishes them."""

from herder.engine.apiserver.crds.controller import CrdController
from herder.engine.apiserver.crds.definition_strategy import DefinitionStrategy
from herder.engine.apiserver.crds.resource import resource_from_crd

__all__ = ["CrdController", "DefinitionStrategy", "resource_from_crd"]
