"""Clusters that are managed from here, however they came to be: their kinds, names, and how agents register."""
