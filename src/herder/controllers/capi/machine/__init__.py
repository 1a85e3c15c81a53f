"""Machines: from their bootstrap data and infrastructure to a Node, kept in step for life, and removed in order."""
