"""Commands that show the state of a cluster and its history."""
