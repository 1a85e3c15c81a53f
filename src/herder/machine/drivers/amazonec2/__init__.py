"""The amazonec2 driver: EC2 instances, or those of a cloud with an EC2-compatible API."""

from herder.machine.drivers.amazonec2.driver import AmazonEC2

__all__ = ["AmazonEC2"]
