"""Who may come in, how many at once, and under which identity."""
