"""MachineHealthChecks: find Machines that are broken, and have them replaced, but never in a storm."""

from herder.controllers.capi.machinehealthcheck.controller import CONTROLLER

__all__ = ["CONTROLLER"]
