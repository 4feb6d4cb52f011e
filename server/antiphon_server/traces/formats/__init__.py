"""What traffic is logged in: a module each."""
