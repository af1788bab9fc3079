"""Which addresses are an HTTP backend's, and which way leads to it."""

import pytest

from agentcoord.errors import ConfigError, Exit
from agentcoord.stores.httpaddress import base_of, proxy_of


@pytest.mark.parametrize(
    ("url", "health"),
    [
        ("https://fleet.example", "https://fleet.example/v1/health"),
        ("https://fleet.example/", "https://fleet.example/v1/health"),
        ("https://fleet.example//", "https://fleet.example//v1/health"),
        ("HTTPS://Fleet.Example:8443/coord/a/", "https://fleet.example:8443/coord/a/v1/health"),
        ("https://me:pa@ss@fleet.example/x", "https://fleet.example/x/v1/health"),
        ("https://fleet.example:/", "https://fleet.example/v1/health"),
        ("https://fleet.example:065535", "https://fleet.example:65535/v1/health"),
        ("http://localhost:8787", "http://localhost:8787/v1/health"),
        ("http://LOCALHOST", "http://localhost/v1/health"),
        ("http://127.0.0.1:1", "http://127.0.0.1:1/v1/health"),
        ("http://[::1]:8787/", "http://[::1]:8787/v1/health"),
        ("https://[2001:DB8::1]", "https://[2001:db8::1]/v1/health"),
    ],
)
def test_an_address_is_kept_but_for_its_userinfo(url: str, health: str) -> None:
    assert base_of(url).route("health") == health


EXPECTED = "invalid HTTP backend URL: expected http(s) URL with host"
QUERY = "invalid HTTP backend URL: must not include a query or fragment"
PORT = "invalid HTTP backend URL: port must be between 1 and 65535"
PLAIN = "HTTP backend URL must use https unless it points at localhost"
MALFORMED = "invalid HTTP backend URL: malformed URL"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("fleet.example", EXPECTED),
        ("ftp://fleet.example", EXPECTED),
        ("https:fleet.example", EXPECTED),
        ("https://", EXPECTED),
        ("https:///path", EXPECTED),
        ("https://me:s3cret@", EXPECTED),
        ("https://:443", EXPECTED),
        ("https://fleet.example?a=s3cret", QUERY),
        ("https://fleet.example/x#s3cret", QUERY),
        ("https://fleet.example/?", QUERY),
        ("https://fleet.example:0", PORT),
        ("https://fleet.example:65536", PORT),
        ("https://fleet.example:-1", PORT),
        ("https://fleet.example:" + "9" * 5000, PORT),
        ("http://fleet.example", PLAIN),
        ("http://127.0.0.2", PLAIN),
        ("http://localhost.fleet.example", PLAIN),
        ("http://localhost@fleet.example", PLAIN),
        ("http://[::2]", PLAIN),
        ("https://fleet.example:s3cret", MALFORMED),
        ("https://me:s3/cret@fleet.example", MALFORMED),
        ("https://fleet example", MALFORMED),
        ("https://fleet.example/\r\nX: s3cret", MALFORMED),
        ("https://flöt.example", MALFORMED),
        ("https://fleet..example", MALFORMED),
        ("https://" + "a" * 64 + ".example", MALFORMED),
        ("https://%66leet.example", MALFORMED),
        ("https://[::1", MALFORMED),
        ("https://[127.0.0.1]", MALFORMED),
        ("https://[::1]x", MALFORMED),
    ],
)
def test_any_other_address_is_refused_and_not_shown(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        base_of(url)
    assert (str(refused.value), refused.value.exit) == (message, Exit.UNKNOWN)


def test_a_record_s_path_and_a_listing_s_query_are_escaped() -> None:
    base = base_of("https://h/x")
    assert base.record("claims/o.o/r_r/~a:b-ü.json") == ("https://h/x/v1/state/claims%2Fo.o%2Fr_r%2F~a%3Ab-%C3%BC.json")
    assert base.listing("claims/o r&limit=1", None, None) == "https://h/x/v1/state?prefix=claims%2Fo+r%26limit%3D1"
    assert base.listing("a", "b/c", 7) == "https://h/x/v1/state?prefix=a&cursor=b%2Fc&limit=7"


HTTPS = {"HTTPS_PROXY": "http://proxy:3128"}


@pytest.mark.parametrize(
    ("url", "env", "proxy"),
    [
        ("https://fleet.example", {}, None),
        ("https://fleet.example", HTTPS, "http://proxy:3128"),
        ("https://fleet.example", {"https_proxy": "proxy:1", **HTTPS}, "http://proxy:1"),
        ("https://fleet.example", {"ALL_PROXY": "https://u:p@proxy:1"}, "https://u:p@proxy:1"),
        ("https://fleet.example", {"HTTP_PROXY": "http://other"}, None),
        ("https://fleet.example", {"HTTPS_PROXY": " "}, None),
        ("https://localhost", HTTPS, None),
        ("https://a.localhost", HTTPS, None),
        ("https://127.1.2.3", HTTPS, None),
        ("https://[::1]:8", HTTPS, None),
        ("http://127.0.0.1:8", {"HTTP_PROXY": "http://proxy", "ALL_PROXY": "http://proxy"}, None),
        *(
            ("https://a.fleet.example:8443", {"NO_PROXY": spared, **HTTPS}, None)
            for spared in ("*", ".fleet.example", "x, A.FLEET.example", "*.fleet.example", "fleet.example:8443")
        ),
        *(
            ("https://a.fleet.example:8443", {"NO_PROXY": spared, **HTTPS}, "http://proxy:3128")
            for spared in ("", "leet.example", "fleet.example:443", "a", ",")
        ),
        ("https://fleet.example", {"NO_PROXY": "fleet.example:443", **HTTPS}, None),
        ("https://10.1.2.3", {"NO_PROXY": "10.0.0.0/8", **HTTPS}, None),
        ("https://10.1.2.3", {"no_proxy": "10.1.2.3", **HTTPS}, None),
        ("https://10.1.2.3:8", {"NO_PROXY": "10.1.2.3:8", **HTTPS}, None),
        ("https://11.1.2.3", {"NO_PROXY": "10.0.0.0/8", **HTTPS}, "http://proxy:3128"),
    ],
)  # fmt: skip
def test_the_proxy_is_the_one_that_the_environment_names(url: str, env: dict[str, str], proxy: str | None) -> None:
    assert proxy_of(base_of(url), env) == proxy


@pytest.mark.parametrize("proxy", ["socks5://u:s3cret@proxy", "http://u:s3cret@pro xy", "ftp://proxy"])
def test_a_proxy_that_cannot_be_used_is_not_shown(proxy: str) -> None:
    with pytest.raises(ConfigError, match=r"^the proxy in ALL_PROXY is ") as refused:
        proxy_of(base_of("https://fleet.example"), {"ALL_PROXY": proxy})
    assert "s3cret" not in str(refused.value)
