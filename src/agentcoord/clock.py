"""Seconds that nobody sets and that go on while the machine is suspended: what the ends of leases are measured by.

Linux has CLOCK_BOOTTIME; on macOS CLOCK_MONOTONIC goes on in sleep (`time.monotonic` does not), and where neither is
known `time.monotonic` has to do: a suspend then goes unseen.
"""

import sys
import time

if sys.platform == "linux":

    def boot() -> float:
        """Seconds since some fixed instant, those of suspends included, where the system has such a clock."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":

    def boot() -> float:
        """Seconds since some fixed instant, those of sleep included."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)

else:

    def boot() -> float:
        """Seconds since some fixed instant; what a suspend takes may be missing."""
        return time.monotonic()
