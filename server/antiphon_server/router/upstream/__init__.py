"""HTTP/1.1 towards the engines."""
