"""Endpoints besides turns, and stored responses."""
