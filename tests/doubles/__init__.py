"""Stand-ins for servers, on real sockets."""
