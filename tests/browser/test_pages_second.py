"""Every second page, from the second on."""

from every_page import *  # noqa: F403

COLOURS = "light"
SHARE = slice(1, None, 2)
