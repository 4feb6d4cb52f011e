"""``antiphon doctor``: what is wrong with a machine, a manifest or a running fleet, and how to mend it."""
