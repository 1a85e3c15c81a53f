"""Writes by which a user could gain rights: one table for every way in which admission is enforced.

The user of the table may create Secrets, clusters and projects in every namespace and edit clusters and namespaces,
which is more than any default role grants: what is rejected here is rejected by admission, not by RBAC.
"""
