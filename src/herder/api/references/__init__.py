"""References that users write, the rights that they need, and the record of those that admission approved."""
