"""The daemon's services: one loop each, and strangers to each other."""
