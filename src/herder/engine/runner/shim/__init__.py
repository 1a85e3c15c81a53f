"""The process between the runner and a container: it outlives the runner, and remembers how the container ended.

Standard library only, and little of it: every container has one of these for as long as it runs.
"""
