"""The floor under a sync that has nothing to do: read the names of every record below some directories, and no record.

Usage: python bench/bare_names.py DIR...
"""

import os
import sys


def count(root: str) -> int:
    """Count the records below `root` by their directory entries alone."""
    found = 0
    directories = [root]
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                elif entry.name.endswith(".json"):
                    found += 1
    return found


if __name__ == "__main__":
    sys.stdout.write(f"{sum(map(count, sys.argv[1:]))} records\n")
