"""What is declared: manifests and commands, read into one form, and the rules over it."""
