"""Starts engines and router on this machine: presets, models, processes (``antiphon up`` and ``Stack``)."""
