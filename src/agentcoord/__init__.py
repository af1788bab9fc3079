"""Coordinate many coding agents: who holds which work item, where, and since when."""
