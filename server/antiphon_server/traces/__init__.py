"""A user's traffic, read from whatever it was logged in."""
