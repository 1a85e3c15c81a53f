"""Cluster controller: adopts infrastructure and control plane objects, reports status, and deletes in order."""
