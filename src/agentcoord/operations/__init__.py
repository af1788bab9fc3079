"""What can be done: read through a store, ask the rules, write under the version read, return a result.

Operations never print, never exit and never look at a clock or an environment of their own. The
command line, the daemon's API and the tests all call these.
"""
