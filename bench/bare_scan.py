"""The floor under `status`: read and decode every record below a directory, and do nothing with it.

Imports only what that takes, since its start-up is part of the floor. Usage: python bench/bare_scan.py DIR
"""

import os
import sys

import msgspec

PIECE = 1 << 16  # more than any usual record, and less than what the allocator maps afresh for each read


def read(path: str) -> bytes:
    """Read a whole file with as few calls as that takes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        data = piece = os.read(descriptor, PIECE)
        while len(piece) == PIECE:
            piece = os.read(descriptor, PIECE)
            data += piece
        return data
    finally:
        os.close(descriptor)


def scan(root: str) -> int:
    """Decode every record below `root` and count them."""
    decode = msgspec.json.Decoder().decode
    count = 0
    directories = [root]
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                elif entry.name.endswith(".json"):
                    decode(read(entry.path))
                    count += 1
    return count


if __name__ == "__main__":
    sys.stdout.write(f"{scan(sys.argv[1])} records\n")
