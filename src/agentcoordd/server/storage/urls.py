"""Database URLs, as they may be shown."""

POSTGRES = ("postgresql://", "postgres://")


def shown(url: str) -> str:
    """Show a database URL without what may be a password in it: before the host, or among the options."""
    if not url.startswith(POSTGRES):
        return url
    scheme, mark, rest = url.partition("://")
    user = "***@" * ("@" in rest)
    options = "?***" * ("?" in rest)
    return f"{scheme}{mark}{user}{place(url)}{options}"


def place(url: str) -> str:
    """Show where a PostgreSQL database is and nothing else of its URL; "" when nothing is sure to be no password."""
    address, _, options = url.partition("://")[2].partition("?")
    return "" if "@" in options else address.rpartition("@")[2]
