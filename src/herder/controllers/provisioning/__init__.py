"""What decides for managed clusters: the pair of objects that each of them is, and how its agent registers."""
