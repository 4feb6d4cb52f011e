"""Whether two-way KV reuse pays for a user's own traffic, and with which settings."""
