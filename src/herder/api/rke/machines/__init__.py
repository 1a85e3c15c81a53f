"""Machines of a cluster: how many may be down, which are lost, and what their removal waits for."""
