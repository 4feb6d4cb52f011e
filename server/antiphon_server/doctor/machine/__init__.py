"""This machine: what it has for the engines that are to run here."""
