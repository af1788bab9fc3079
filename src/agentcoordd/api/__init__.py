"""What callers of the daemon may ask over its socket, and how they are answered."""
