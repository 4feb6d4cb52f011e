"""A running fleet: what its engines and its router say, and what a few real turns show."""
