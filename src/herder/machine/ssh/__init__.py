"""Into machines by SSH: keys, host keys that are insisted on, commands, copies and shells."""
