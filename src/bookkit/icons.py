"""The icons the pages use, as SVG paths drawn for this book: one weight, a 24 x 24 grid, lines
only.

They take the place of 1.4 MB of icon fonts. Keys are the book's own names and the names by which
the theme asks."""

from pathlib import Path

# name -> path, a line of icons.txt for each
LINES = Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines()
PATHS = dict(line.split(" ", 1) for line in LINES)

# What the theme and the launch buttons call them.
ALIASES = {
    "fas fa-download": "download",
    "fas fa-code": "notebook",
    "fas fa-file": "file",
    "fas fa-file-pdf": "print",
    "fas fa-expand": "fullscreen",
    "fas fa-pencil-alt": "edit",
    "fas fa-lightbulb": "issue",
    "fas fa-rocket": "launch",
    "fab fa-github": "repository",
    "fab fa-gitlab": "repository",
    "fab fa-bitbucket": "repository",
}
ICONS = PATHS | {alias: PATHS[name] for alias, name in ALIASES.items()}


def svg(name):
    """Inline SVG of an icon; it takes size and colour from the text around it. Raises KeyError for
    an unknown name."""
    shown = ALIASES.get(name, name)
    return (
        f'<svg class="icon icon-{shown}" viewBox="0 0 24 24" aria-hidden="true">'
        f'<path d="{ICONS[name]}"/></svg>'
    )
