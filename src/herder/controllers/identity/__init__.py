"""Roles and their bindings become plain RBAC: here, and in the clusters that they are about."""
