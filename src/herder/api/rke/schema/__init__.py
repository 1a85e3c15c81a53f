"""Schemas of provisioned clusters: what upstream accepts is accepted, what it would misread is rejected."""
