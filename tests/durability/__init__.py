"""Durability of the store under kill -9 and power loss: random traffic, a crash at any moment, a history checker."""
