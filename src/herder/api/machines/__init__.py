"""The generic machine provider's facts: its kinds, names and flags, shared by who decides and who does."""
