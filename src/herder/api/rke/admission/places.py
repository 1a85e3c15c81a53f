"""Where a Cluster says how it is built."""

RKE = ("spec", "rkeConfig")
PATH = "spec.rkeConfig"
