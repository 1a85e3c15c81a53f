"""Job controller of the embedded server. A real cluster has its own, in kube-controller-manager."""

from herder.engine.runner.jobs.controller import JobController

__all__ = ["JobController"]
