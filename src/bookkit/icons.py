"""The icons the pages use, as SVG paths drawn for this book: one weight, a 24 x 24 grid, lines
only.

They take the place of 1.4 MB of icon fonts. Keys are the book's own names and the names by which
the theme asks."""

PATHS = {
    "menu": "M4 7h16M4 12h16M4 17h16",
    "search": "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13ZM15.5 15.5 20 20",
    "light": (
        "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6 7 7M17 17l1.4"
        " 1.4M18.4 5.6 17 7M7 17l-1.4 1.4"
    ),
    "dark": "M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5Z",
    "auto": "M12 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16ZM12 4v16M12 8l5-2.2M12 12h8M12 16l5 2.2",
    "left": "M15 5l-7 7 7 7",
    "right": "M9 5l7 7-7 7",
    "down": "M5 9l7 7 7-7",
    "close": "M6 6l12 12M18 6 6 18",
    "copy": "M9 9h10v11H9zM5 15V4h10",
    "done": "M5 12.5l4.5 4.5L19 7",
    "download": "M12 4v11M7.5 11 12 15.5 16.5 11M5 20h14",
    "file": "M7 3.5h7l4 4V20.5H7zM14 3.5v4h4",
    "notebook": "M7 4h11v16H7zM7 4v16M4.5 8H7M4.5 12H7M4.5 16H7M10.5 8.5H15",
    "print": "M7 9V4h10v5M7 17H4V9h16v8h-3M7 14h10v6H7z",
    "launch": "M10 5H5v14h14v-5M13 5h6v6M19 5l-8.5 8.5",
    "repository": (
        "M7 8.5a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM7 19.5a2 2 0 1 0 0-4 2 2 0 0 0 0 4Z"
        "M17 8.5a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM7 8.5v7M17 8.5c0 4-4 4.5-8.5 7"
    ),
    "edit": "M5 19l1-4L16 5l3 3L9 18z",
    "issue": "M12 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16ZM12 8v5M12 16v.2",
    "fullscreen": "M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5",
    "reset": "M5 5v5h5M5.5 10A7.5 7.5 0 1 1 5 14",
    "play": "M8 5l11 7-11 7z",
}

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
