from herder.controllers.inmemory.controlplane.controller import CONTROLLER

__all__ = ["CONTROLLER"]
