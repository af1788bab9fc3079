"""The protocol: records and their rules as plain data and pure functions.

No clock, no environment, no I/O: what is read and what time it is come in as arguments.
"""
