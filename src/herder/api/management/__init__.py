"""Managed clusters: kinds, names, registration and the cluster agent's manifest."""
