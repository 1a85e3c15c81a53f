"""The Cluster controller: brings infrastructure and control plane together, reports on everything in the cluster,
and takes it all apart in order."""
