"""MachineHealthCheck controller: detect unhealthy Machines and have them remediated at a limited rate."""

from herder.controllers.capi.machinehealthcheck.controller import CONTROLLER

__all__ = ["CONTROLLER"]
