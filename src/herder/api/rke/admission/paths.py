"""Path of the provisioning configuration in a Cluster."""

RKE = ("spec", "rkeConfig")
PATH = "spec.rkeConfig"
