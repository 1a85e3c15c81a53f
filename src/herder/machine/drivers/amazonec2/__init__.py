"""Machines that are Amazon EC2 instances, or those of a cloud that speaks the same protocol."""

from herder.machine.drivers.amazonec2.driver import AmazonEC2

__all__ = ["AmazonEC2"]
