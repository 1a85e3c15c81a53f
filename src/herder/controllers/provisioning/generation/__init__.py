"""What a provisioning Cluster with an rkeConfig becomes: the objects of Cluster API, its control plane, its pools."""
