"""A program run where some system calls are refused: `python confined.py CALL[,CALL…] PROGRAM WORD…`.

A real filter of the kernel (seccomp), such as sandboxes put around coding agents: the calls answer EPERM.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

NUMBERS = {
    "x86_64": {"socket": 41, "connect": 42, "socketpair": 53},
    "aarch64": {"socket": 198, "connect": 203, "socketpair": 199},
}
_NO_NEW_PRIVS, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def filter_of(numbers: list[int]) -> bytes:
    """Give the program of the filter: these calls fail, all others pass."""
    steps = [(_LOAD_NUMBER, 0, 0, 0)]
    for place, number in enumerate(numbers):
        steps.append((_JUMP_IF_EQUAL, len(numbers) - place, 0, number))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def confine(calls: list[str]) -> None:
    """Refuse system calls to this process and all that come of it. Raises OSError where the kernel has no filters."""
    code = filter_of([NUMBERS[platform.machine()][call] for call in calls])
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))
    library = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    for option, first, second in (
        (_NO_NEW_PRIVS, ctypes.c_ulong(1), none),
        (_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.c_char_p(program)),
    ):
        if library.prctl(option, first, second, none, none):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    confine(sys.argv[1].split(","))
    os.execv(sys.argv[2], sys.argv[2:])
