"""A distribution of our own: the embedded API server as a cluster's control plane, and nodes that run no pods."""
