"""The Job controller of the embedded server. A real cluster brings its own, in its controller-manager."""

from herder.engine.runner.jobs.controller import JobController

__all__ = ["JobController"]
