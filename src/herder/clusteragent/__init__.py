"""The cluster agent: connects a cluster to the manager from inside, so that the manager needs no access to
the cluster.
"""
