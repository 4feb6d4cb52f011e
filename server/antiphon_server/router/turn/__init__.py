"""One turn from the client's request to the end of its reply."""
