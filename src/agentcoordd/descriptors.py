"""How many descriptors this process may have: one for each agent that is watched, and for each connection."""

import resource


def raise_limit(wanted: int) -> int:
    """Have so many descriptors allowed, or as many of them as the system lets; gives what is allowed in the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):  # such as macOS, which names a hard limit that it does not keep
        return soft
    return wanted
