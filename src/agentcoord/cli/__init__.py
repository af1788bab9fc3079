"""The command line as three steps: parse, do, render. Only `run` joins them, and `examination` for the doctor.

Nothing here prints, reads the environment, the working directory or the terminal: an Invocation says
what there is, an Output says what came of it, and the process that was started does the rest.
"""
