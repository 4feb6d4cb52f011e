"""A fleet on machines that are not at hand: files and commands, rendered and checked here."""
