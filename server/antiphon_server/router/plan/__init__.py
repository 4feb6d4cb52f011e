"""Which path a turn takes, and what that is decided from."""
