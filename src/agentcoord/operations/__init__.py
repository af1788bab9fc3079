"""What can be done, a function for each deed: from a request to a typed result, by way of a store and the rules.

What is written depends on the version that was looked at. Output, exit status, clock and environment
are the caller's, be it the command line or a test.
"""
