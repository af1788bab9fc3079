"""The protocol: what records look like and which rules they obey, as values and functions of values.

Records that were read, the time and the writer's identity are all arguments here.
"""
