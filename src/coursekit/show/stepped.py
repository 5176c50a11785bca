"""A card that goes step by step, as HTML: an explorer's look, a picture, a slider and
buttons. static/stepper.js makes it live, in a page of the book (bookkit/stepper.py) and in a
notebook."""

import re
from html import escape

from .card import STATUS

BUTTONS = {  # 24 x 24, lines only, like the book's icons
    "first": ("First", "M17 6l-7 6 7 6M7 6v12"),
    "back": ("One step back", "M15 6l-7 6 7 6"),
    "play": ("Play", None),
    "forward": ("One step forward", "M9 6l7 6-7 6"),
    "last": ("Last", "M7 6l7 6-7 6M17 6v12"),
}
PLAY, PAUSE = "M8 5l11 7-11 7z", "M9 5.5v13M15 5.5v13"


def inside_of(ident, look, step, steps, number, room_of_picture, menus=""):
    """Everything between the card's title and its foot, at step `number` of `steps`, which have a
    sentence and a detail each. `look` says what to look at, `menus` what is chosen (both HTML),
    `step` what a step is called; `room_of_picture` is the style that keeps the picture's place."""
    last = len(steps) - 1
    longest = lambda texts: max(map(_unbroken, texts), key=len)
    sentences, details = zip(*((step.sentence, step.detail) for step in steps))
    room = f"{longest(sentences)}\n{longest(details)}"  # as stepper.js writes it
    return f"""<div class="explorer-picture" tabindex="0" role="group"
 aria-label="Picture: the arrow keys step, space plays">
<p class="explorer-caption">{look}</p>
<div class="explorer-drawing" style="{room_of_picture}"></div></div>
<div class="explorer-menus">{menus}</div>
<div class="explorer-controls"><div class="explorer-menu">
<label for="{ident}-step">{step}
<span class="stepper-count">{number} of {last}</span></label>
<input type="range" id="{ident}-step" min="0" max="{last}" step="1" value="{number}"></div>
<div class="stepper-buttons">{"".join(map(_button, BUTTONS))}</div>
<p class="stepper-keys">Keys: <kbd>←</kbd> <kbd>→</kbd> one step, <kbd>space</kbd> plays</p></div>
<div class="explorer-words" id="{ident}-words">
<p class="explorer-sentence">{escape(_unbroken(steps[number].sentence))}</p>
<p class="explorer-detail">{escape(_unbroken(steps[number].detail))}</p>
<p class="stepper-room" aria-hidden="true">{escape(room)}</p></div>
{STATUS}
"""


def _unbroken(text):
    """No line ends between a rank and its number."""
    return re.sub("(rank|chunk|unit) (?=[0-9A-H])", "\\1\N{NO-BREAK SPACE}", text)


def _button(name):
    words, path = BUTTONS[name]
    paths = (
        f'<path d="{path}"/>'
        if path
        else f'<path class="play" d="{PLAY}"/><path class="pause" d="{PAUSE}"/>'
    )
    kind = f'data-to="{name}"' if path else 'class="stepper-play"'
    return (
        f'<button type="button" {kind} aria-label="{words}">'
        f'<svg class="icon" viewBox="0 0 24 24" aria-hidden="true">{paths}</svg></button>'
    )
