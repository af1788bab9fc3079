"""What runs for long beside the command: the daemon of a machine. Not part of this release yet."""
