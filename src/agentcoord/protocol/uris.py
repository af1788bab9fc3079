"""Which texts are URIs, by the grammar of RFC 3986; nothing here is ever fetched."""

import re

_FREE = r"A-Za-z0-9._~!$&'()*+,;=\-"
_ESCAPED = r"%[0-9A-Fa-f]{2}"
_SEGMENT = rf"(?:[{_FREE}:@]|{_ESCAPED})"
_AUTHORITY = (
    rf"(?:(?:[{_FREE}:]|{_ESCAPED})*@)?"
    rf"(?:\[(?P<ip>[0-9A-Fa-f:.]+)\]|\[[Vv][0-9A-Fa-f]+\.[{_FREE}:]+\]|(?:[{_FREE}]|{_ESCAPED})*)"
    r"(?::[0-9]*)?"
)
# Kept as text: most commands load this module, few meet a URI, and the grammar takes longer to compile than to load.
_URI = (
    r"[A-Za-z][A-Za-z0-9+.-]*:(?=.)"
    rf"(?://{_AUTHORITY}(?:/{_SEGMENT}*)*|/(?:{_SEGMENT}+(?:/{_SEGMENT}*)*)?|{_SEGMENT}+(?:/{_SEGMENT}*)*|)"
    rf"(?:\?(?:{_SEGMENT}|[/?])*)?"
    rf"(?:#(?:{_SEGMENT}|[/?])*)?"
)
_WEB = r"[Hh][Tt][Tt][Pp][Ss]?://[^/?#\s]"


def is_uri(value: object) -> bool:
    """Tell whether a value is an absolute URI with something behind its scheme; it may have a fragment."""
    if not isinstance(value, str) or (found := re.fullmatch(_URI, value)) is None:
        return False
    address = found["ip"]
    return address is None or _is_ip6(address)


def is_web_uri(value: object) -> bool:
    """Tell whether a value is a URI of http or https that names somebody to ask."""
    return is_uri(value) and isinstance(value, str) and re.match(_WEB, value) is not None


def _is_ip6(address: str) -> bool:
    from ipaddress import AddressValueError, IPv6Address

    try:
        IPv6Address(address)
    except AddressValueError:
        return False
    return True
