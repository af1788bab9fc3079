"""Settings: what the environment, the flags and the user file say together, as one frozen value."""
