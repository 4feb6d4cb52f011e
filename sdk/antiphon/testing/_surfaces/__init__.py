"""The words of each surface, whole and streamed. Pure; time stands still at second 1."""
