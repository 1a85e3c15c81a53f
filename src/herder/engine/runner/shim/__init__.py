"""Container shim: the process between the runner and a container.

It outlives the runner and records the exit status. It uses only a small part of the standard library, because every
running container has one.
"""
