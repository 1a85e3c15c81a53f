"""Evictions, shared by the drain of Machines that are deleted and the drain of Nodes before a disruptive plan."""
