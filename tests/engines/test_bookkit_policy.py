"""The Content-Security-Policy that is written into a page; what browsers make of it is in
tests/browser/test_policy.py."""

import re

import pytest

from bookkit.policy import policy, with_policy

# sha256 of "go()", as `printf 'go()' | openssl dgst -sha256 -binary | base64` prints it
GO = "'sha256-5KYv+PUboo5h+0+YAtGRPbwv5d/QxzHslP4YGnUaxRw='"
PAGE = '<head>\n<meta charset="utf-8" /><title>a</title><script>go()</script></head>'


def scripts(page):
    return re.search("script-src ([^;]*)", policy(page))[1].split()


def test_inline_scripts_are_named_by_hash():
    """Mutations: hash the text without its white space; hash data, or a file's empty element; miss
    the second script; name one twice."""
    assert scripts(PAGE) == ["'self'", "file:", GO]
    assert scripts("<script src='a.js'></script>") == ["'self'", "file:"]
    assert scripts("<script type='application/json'>go()</script>") == ["'self'", "file:"]
    assert scripts("<script> go()</script>")[2] != GO
    assert len(scripts("<script>1 < 2</script><p>a</p><script>'&amp;'</script>")) == 4
    assert scripts(2 * PAGE) == scripts(PAGE)


def test_a_page_gets_one_policy_in_front_of_all():
    """Mutations: a second policy at the second build; the policy of an older build, with hashes of
    scripts that are gone; the policy behind a script."""
    once = with_policy(PAGE)
    assert with_policy(once) == once and once.count("Content-Security-Policy") == 1
    assert once.index(GO) < once.index("<title>") < once.index("<script>")
    assert GO not in with_policy(once.replace("go()", "went()"))
    with pytest.raises(ValueError, match='no <meta charset="utf-8" />'):
        with_policy("<head></head>")
