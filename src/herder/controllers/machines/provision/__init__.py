"""machineprovision: create and remove the machines of node drivers by Jobs, and report their status."""
