"""SSH access to machines: keys, host key verification, commands, file copies and shells."""
