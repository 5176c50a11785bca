"""The card of an explorer as HTML, with everything in it that needs no script: menus, controls, the
places of its pictures, the sentence for the start. static/explorer.js makes it live, in a page of
the book and in a notebook."""

import json
import re
from html import escape

from .explorer_data import data_of
from .format import format_to_type
from .spec import Choice

RESET = '<button type="button" class="explorer-reset">Reset</button>'
COPY = '<button type="button" class="explorer-copy">Copy as Python</button>\n'
STATUS = '<p class="explorer-status" role="status"></p>'


# --- what all cards share -------------------------------------------------------------------------


def json_in_html(data):
    """The data as JSON, also NumPy's numbers, in which nothing ends a script."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, default=float)
    return text.replace("<", "\\u003c")


def frame(ident, look, title, inside, attributes="", first=""):
    """A card with its title; `look` are its classes, `first` stands above the title."""
    return f"""
<div class="{look}" id="{ident}"{attributes} role="group" aria-labelledby="{ident}-title">
{first}<p class="explorer-title" id="{ident}-title">{title}</p>
{inside}
</div>
"""


def foot(before="", after=""):
    """The end of a card: its buttons."""
    return f"""<div class="explorer-foot">{before}{RESET}
{after}</div>"""


def menu(ident, label, choices, chosen, own="", attributes=""):
    """A menu of names, or of words for values; `own` is said while none of them is chosen."""
    known = choices.items() if isinstance(choices, dict) else ((None, name) for name in choices)
    options = f'<option value="" hidden>{own}</option>' if own else ""
    for value, words in known:
        given = "" if value is None else f' value="{value}"'
        selected = " selected" if chosen == (words if value is None else value) else ""
        options += f"<option{given}{selected}>{escape(words)}</option>"
    return labelled(ident, escape(label), f'<select id="{ident}"{attributes}>{options}</select>')


def labelled(ident, label, control):
    """A control below its label, both of them HTML."""
    return f'<div class="explorer-menu"><label for="{ident}">{label}</label>{control}</div>'


# --- an explorer's --------------------------------------------------------------------------------


def ident_of(spec):
    """The id of an explorer's card."""
    return f"explorer-{spec.name}"


def explorer_card(
    spec, buttons, look="explorer", measured=None, parts="", of_parts=None, first="", last=""
):
    """The explorer as HTML. `buttons` are its foot(); `measured` has measured values by quantity or
    line; `parts` stand under the first picture, and their scripts read `of_parts`; `first` stands
    above the title, `last` behind all else."""
    ident, start = ident_of(spec), spec.start()
    computed = spec.compute(start)
    menus = "".join(_menu(ident, spec, asked) for asked in spec.menus)
    controls = _controls(spec, start)
    shown, *others = (
        f'<div class="explorer-picture"><p class="explorer-caption">{escape(picture.title)}</p>'
        f"{_place(picture, measured or {})}</div>"
        for picture in spec.pictures
    )
    detail = (
        f'<div class="explorer-words" id="{ident}-detail"><p class="explorer-detail">'
        f"{escape(unbroken(spec.say_detail(computed)))}</p></div>"
    )
    data = data_of(spec, measured or {}) | (of_parts or {})
    inside = f"""<div class="explorer-body">
<div class="explorer-menus">{menus}</div>
<div class="explorer-controls">{controls}</div>
<div class="explorer-shown"><div class="explorer-pinned">{shown}
<div class="explorer-words" id="{ident}-words">
<p class="explorer-sentence">{escape(unbroken(spec.say(computed)))}</p></div>
<p class="explorer-stale">last valid values</p></div>{parts}{_others(spec, others)}
{"</div>" + detail if tall(spec) else detail + "</div>"}
</div>
{STATUS}
{buttons}
<pre class="explorer-python" tabindex="0" hidden></pre>
<script type="application/json">{json_in_html(data)}</script>{last}"""
    attributes = f' data-explorer="{spec.name}"'
    return frame(ident, look, escape(spec.title), inside, attributes, first)


def tall(spec):
    """Whether pictures and parts fill the height of a screen, so that words and controls have to
    share the other column."""
    return bool(spec.parts) or any(picture.kind != "time" for picture in spec.pictures[1:])


def unbroken(text):
    """No line ends between a number and its unit."""
    return re.sub(r"(?<=\d) (?=[A-Za-z])", "\N{NO-BREAK SPACE}", text)


def initials(name):
    """The ids of an explorer's controls begin with these: each id stands five times or more on the
    page."""
    return "".join(word[0] for word in name.split("-"))


def _place(picture, measured):
    """The place of a picture, as high as all above its key, with an empty item for each entry of
    the key: what the script draws moves nothing. The items fill rows as the entries do, however
    wide the place is. A row says what was measured, where something was."""
    high, left, gap, widths = picture.room
    high += 18 * any(name in measured for name in picture.measurable)
    items = "".join(f'<i style="width:{width:.1f}px"></i>' for width in widths)
    style = f"padding:{high}px 0 0 {left}px;column-gap:{gap}px"
    return f'<div class="explorer-drawing" style="{style}">{items}</div>'


def _others(spec, pictures):
    """The pictures after the first, behind tabs where there are several: the card stays within a
    screen."""
    if len(pictures) > 1:
        ident = initials(spec.name)
        tabs = "".join(
            f'<label><input type="radio" name="{ident}"{"" if place else " checked"}><span>'
            f"{escape(picture.title)}</span></label>"
            for place, picture in enumerate(spec.pictures[1:])
        )
        tabs = f'<div class="explorer-tabs" role="radiogroup" aria-label="Picture">{tabs}</div>'
    else:
        tabs = ""
    return f'<div class="explorer-others">{tabs}{"".join(pictures)}</div>' if pictures else ""


def _menu(ident, spec, asked):
    return menu(
        f"{ident}-{asked.kind}",
        asked.label,
        asked.names,
        spec.begin[asked.kind],
        own="own values",
        attributes=f' data-kind="{asked.kind}"',
    )


def _controls(spec, start):
    """The controls, in groups that fold where the explorer has groups; beside several pictures, or
    of many controls, one group is open at a time."""
    made = {
        control.quantity: (_choice if isinstance(control, Choice) else _control)(
            f"{initials(spec.name)}{place}", control, start[control.quantity]
        )
        for place, control in enumerate(spec.controls)
    }
    many = tall(spec) or len(spec.controls) > 9
    alone = f' name="{initials(spec.name)}"' if many else ""
    groups = "".join(
        f'<details class="explorer-group"{alone}{"" if group.folded else " open"}>'
        f"<summary>{escape(group.title)}</summary>"
        '<div class="explorer-grouped">'
        f"{''.join(made.pop(name) for name in group.quantities)}</div></details>"
        for group in spec.groups
    )
    return "".join(made.values()) + groups


def _control(ident, control, value):
    """A box and a slider of one name. The slider moves over positions of the list of stops; the
    script says how many there are."""
    text = escape(format_to_type(value, control.style))
    return (
        f'<div class="explorer-control" data-quantity="{control.quantity}"><label'
        f' id="{ident}-label" for="{ident}">{escape(control.label)}</label><input type="text"'
        f' id="{ident}" value="{text}"><input type="range" aria-labelledby="{ident}-label"></div>'
    )


def _choice(ident, control, value):
    """One button for each option; one of them is down. The value of a button is its place in the
    list."""
    options = "".join(
        f'<label><input type="radio" name="{ident}"'
        f' value="{place}"{" checked" if option == value else ""}>'
        f"<span>{escape(words)}</span></label>"
        for place, (option, words) in enumerate(control.options)
    )
    return (
        f'<div class="explorer-control explorer-choice" data-quantity="{control.quantity}"><span'
        f' id="{ident}-label">{escape(control.label)}</span><div class="explorer-options"'
        f' role="radiogroup" aria-labelledby="{ident}-label">{options}</div></div>'
    )
