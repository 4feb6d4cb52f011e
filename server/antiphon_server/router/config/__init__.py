"""What the router can be told, and how it is told so again while it runs."""
