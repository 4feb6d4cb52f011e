"""Frontiers: where each conversation's KV lives, in memory or shared through Redis."""
