"""Controllers of the generic machine provider: NodeDrivers become CRDs, machine objects become instances."""
