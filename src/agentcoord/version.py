"""The one home of the version; the build reads it from here, and nothing else is in this file."""

VERSION = "0.1.0"
