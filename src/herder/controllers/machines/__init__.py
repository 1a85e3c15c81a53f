"""What decides for the generic machine provider: drivers become kinds, machine objects become machines."""
