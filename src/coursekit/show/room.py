"""The room that a card keeps before its script comes: what the script draws moves nothing. The
test that compares both is in tests/browser/test_web_pages.py."""

from .pictures import measurable
from .schedule_pictures import KEY


def of_picture(picture, measured):
    """The place of a picture: as high as all above its key, with an empty item for each entry of
    the key. The items fill rows as the entries do, however wide the place is. A row says what was
    measured, where something was."""
    high, left, gap, widths = _PICTURES[picture.kind](picture)
    high += 18 * any(name in measured for name in measurable(picture))
    items = "".join(f'<i style="width:{width:.1f}px"></i>' for width in widths)
    style = f"padding:{high}px 0 0 {left}px;column-gap:{gap}px"
    return f'<div class="explorer-drawing" style="{style}">{items}</div>'


def _timeline(picture):
    columns = sorted(picture.columns, key=lambda column: -len(column.parts))
    words = {}
    for part in (part for column in columns for part in column.parts):
        words.setdefault(part.colour, part.label)
    return 232, 0, 10, [18 + 5.9 * len(text) for text in words.values()]


def _streams(picture):
    words = {name: words for name, words, _ in picture.colours}
    return 148, 62, 0, [22 + 6.4 * len(text) for text in (*words.values(), picture.idle)]


def _schedule(picture):
    return 212, 16, 0, [22 + 6.4 * len(text) for text in KEY]


# Kind -> pixels above the key, left of it and between its entries; the widths of its entries.
_PICTURES = {
    "memory": lambda picture: (
        17 * len(picture.parts) + (99 if picture.capacity else 72),
        0,
        0,
        (),
    ),
    "curves": lambda picture: (16 * len(picture.marks) + 218, 0, 0, ()),
    "time": lambda picture: (62, 0, 0, ()),
    "timeline": _timeline,
    "streams": _streams,
    "schedule": _schedule,
}
