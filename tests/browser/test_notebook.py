"""Explorers and steppers as a notebook shows them: the HTML of an output, without a network and a
kernel."""

import pytest
from visit import DRAWN, JS, PHONE, TOUCH

from coursekit.show.explorers import EXPLORERS
from coursekit.show.format import decimal_bytes
from coursekit.show.widgets import explorer
from coursekit.topics.collectives.stepper import stepper
from shardlab import collective_plans as plans
from shardlab.collective_plans import Move

FIT = EXPLORERS["does-it-fit"]
COMPUTED = FIT.compute(FIT.start())
FIRST, *OTHERS = [part.quantity for part in FIT.pictures[0].parts]
WEIGHED = {FIRST: COMPUTED[FIRST] // 2, **{name: COMPUTED[name] for name in OTHERS}}
POINTS = {"attainable_flops_per_second": [(0.01, 1e11), (85.3, 8e14)]}
TINY = dict(layers=1, hidden=64, heads=4, key_value_heads=4, feed_forward=256, vocabulary=64)
OUTPUTS = [
    explorer(FIT, measured=WEIGHED),
    explorer("roofline", measured=POINTS),
    explorer("fits-and-how-long", measured={"training_seconds": 86_400}),
    explorer("schedule", pipeline_parallel=3, microbatches=5),
    explorer(FIT, **TINY),
    explorer(FIT, measured=WEIGHED),  # the cell run again beside it
]
# As JupyterLab puts an output into its page: a script does not run by itself there.
PUT = """html => {
  const place = document.body.appendChild(document.createElement("section"));
  place.innerHTML = html;
  for (const script of place.querySelectorAll("script")) {
    const clone = document.createElement("script");
    clone.textContent = script.textContent;
    script.replaceWith(clone);
  }
}"""
WORDS = """[...document.querySelectorAll("section")].map(place =>
  place.querySelector("div > div").shadowRoot.querySelector(".explorer-sentence").textContent
    .replaceAll("\\u00a0", " "))"""
PLACES = """(path, pairs) => [...path.getAttribute("d").matchAll(/M([\\d.]+) ([\\d.]+)/g)]
  .map(found => [+found[1], +found[2]])"""
# A picture out of sight waits until the hand rests.
ALL_DRAWN = """() => [...document.querySelectorAll("section")].every(place =>
  !place.querySelector("div > div").shadowRoot.querySelector(".explorer").late)"""
BOXES = """parts => parts.map(part => { const box = part.getBBox();
  return [Math.round(box.x), Math.round(box.width), getComputedStyle(part).fill]; })"""


def put(page, mode="light", outputs=OUTPUTS):
    ink = "color: #ddd; background: #111" if mode == "dark" else ""
    page.set_content(f'<meta name="viewport" content="width=device-width"><body style="{ink}">')
    for output in outputs:
        page.evaluate(PUT, output.html())
    page.evaluate(DRAWN)
    assert page.locator("svg[width]").count() >= len(outputs)


@pytest.fixture
def notebook(opened):
    page = opened(offline=True)
    page.watch.forget()
    put(page)
    yield page
    assert not page.watch.errors and not page.watch.loaded


def at(page, place):
    return page.locator("section").nth(place)


def slide(page, place, quantity, stop):
    """Set a slider to a stop, as a hand does."""
    control = at(page, place).locator(f"[data-quantity={quantity}]").first
    control.evaluate("one => { const group = one.closest('details'); if (group) group.open = 1; }")
    stops = next(one.stops for one in OUTPUTS[place].spec.controls if one.quantity == quantity)
    control.locator("[type=range]").evaluate(
        """(slider, to) => { slider.value = to; ["input", "change"].forEach(kind =>
          slider.dispatchEvent(new Event(kind))); }""",
        list(stops).index(stop),
    )
    page.wait_for_function(ALL_DRAWN)


def texts(page, place):
    return at(page, place).locator("svg text").all_text_contents()


def test_an_output_moves_by_itself(notebook):
    """Mutations: code that asks the network; a slider that only the first output has; names that
    outputs share, so that one moves another; a sentence left beside the card."""
    before = notebook.evaluate(WORDS)
    assert before == [output.sentence for output in OUTPUTS]
    assert notebook.locator("section > div > p").count() == 0
    slide(notebook, 5, "gpus_per_copy", 2)
    after = notebook.evaluate(WORDS)
    assert after[:5] == before[:5] and after[5].startswith("Each of the 2 GPUs")
    assert decimal_bytes(COMPUTED["states_bytes_per_gpu"] // 2) in texts(notebook, 5)
    slider = at(notebook, 0).locator("[type=range]").first
    slider.focus()
    notebook.keyboard.press("ArrowRight")
    assert notebook.evaluate(WORDS)[0] == after[5]
    at(notebook, 0).locator(".explorer-copy").click()
    assert "gpus_per_copy=2" in at(notebook, 0).locator(".explorer-python").inner_text()
    at(notebook, 0).locator(".explorer-reset").click()
    assert notebook.evaluate(WORDS)[0] == before[0]


def test_what_was_measured_is_filled_and_stays(notebook):
    """Mutations: measured bytes given to another part; the prediction filled, so that it hides the
    measurement; "the same" beside another number; a measured bar that moves with the slider; a bar
    that was measured at other values than those shown, without a word."""
    ours, theirs = (at(notebook, 0).locator(kind) for kind in ("polygon.measured", ".predicted"))
    found, outlined = ours.evaluate_all(BOXES), theirs.evaluate_all(BOXES)
    assert found[0][1] == pytest.approx(outlined[0][1] / 2, abs=1)
    assert [box[1] for box in found[1:]] == pytest.approx([box[1] for box in outlined[1:]], abs=1)
    assert [box[0] for box in found[1:]] == [sum(box[:2]) for box in found[:-1]]
    assert {box[2] for box in outlined} == {"none"} and "none" not in {box[2] for box in found}
    words = texts(notebook, 0)
    assert sum(word.endswith(", measured the same") for word in words) == len(OTHERS)
    assert any(word.endswith(f"measured {decimal_bytes(WEIGHED[FIRST])}") for word in words)
    assert "outline: predicted, fill: measured" in words
    slide(notebook, 0, "layers", 16)
    assert "outline: predicted, fill: measured with layers 32" in texts(notebook, 0)
    moved = [word for word in texts(notebook, 0) if "measured " in word and "outline" not in word]
    assert [word.rpartition("measured ")[2] for word in moved] == [
        decimal_bytes(size) for size in WEIGHED.values()
    ]
    slide(notebook, 0, "gpus_per_copy", 2)
    key = next(word for word in texts(notebook, 0) if "fill: measured" in word)
    assert key.endswith(" measured with layers 32 and GPUs that share one copy 1")
    slide(notebook, 0, "hidden", 2048)
    assert any(word.endswith("measured where the explorer began") for word in texts(notebook, 0))
    at(notebook, 0).locator(".explorer-reset").click()
    notebook.wait_for_function(ALL_DRAWN)
    assert texts(notebook, 0) == words and ours.evaluate_all(BOXES) == found


def test_points_stand_beside_their_line(notebook):
    """Mutations: points beside another line; an axis of the stops only, which drops a point; the
    reader's own point as a disc over them; the swept quantity named, of which each point has its
    own; a measured day where the prediction is."""
    marks = at(notebook, 1).locator("path.measured")
    places = [marks.nth(k).evaluate(PLACES) for k in range(marks.count())]
    (own,) = filter(None, places)
    assert places[0] == own and len(own) == 2
    svg = at(notebook, 1).locator("svg").bounding_box()
    assert all(0 < x < svg["width"] and 0 < y < svg["height"] for x, y in own)
    assert own[0][0] < own[1][0] and own[0][1] > own[1][1]
    assert "lines: predicted, marks: measured" in texts(notebook, 1)
    assert at(notebook, 1).locator(".marker.predicted").evaluate_all(BOXES)[0][2] == "none"
    slide(notebook, 1, "operation_rows", 16)
    assert "lines: predicted, marks: measured with rows 4,096" in texts(notebook, 1)
    assert {"1 day measured", "28.5 days predicted"} <= {*texts(notebook, 2)}
    ring, disc = (
        at(notebook, 2).locator(kind).evaluate("mark => mark.getBBox().x")
        for kind in ("circle.predicted", "path.measured")
    )
    assert disc < ring - 50


def test_what_no_page_begins_with(notebook):
    """Mutations: a schedule whose list only the page's buttons have; a bar of a pixel beside a
    card of a thousand times its bytes, or that card's name cut off in a narrow window."""
    assert "on 3 ranks" in notebook.evaluate(WORDS)[3]
    assert {"0", "1", "2", "in flight"} <= {*texts(notebook, 3)}
    assert any("85.1 GB card: far to the right" in words for words in texts(notebook, 4))
    widths = [box[1] for box in at(notebook, 4).locator("polygon.part").evaluate_all(BOXES)]
    assert sum(widths) > 300
    notebook.set_viewport_size(PHONE | dict(width=320))
    notebook.evaluate(DRAWN)
    card = at(notebook, 4).locator(".explorer")
    assert card.evaluate(f"root => ({JS.CARD_PROBLEMS})(root, 0)") == []
    at(notebook, 4).locator("select").first.select_option("Llama 7B")
    notebook.wait_for_function(ALL_DRAWN)
    assert "85.1 GB card" in texts(notebook, 4)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_an_output_on_a_phone_in_its_notebooks_colours(opened, mode):
    """Mutations: a card that stays light in a dark notebook; a key or a measured number cut off or
    over another; a card wider than a phone; a slider that no finger meets."""
    page = opened(offline=True, **TOUCH)
    put(page, mode)
    for place in range(len(OUTPUTS)):
        host = at(page, place).locator("div > div").first
        assert host.get_attribute("data-theme") == mode
        card = at(page, place).locator(".explorer")
        assert card.evaluate(f"root => ({JS.CARD_PROBLEMS})(root, 1)") == [], place
        shades = card.evaluate(
            "one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]"
        )
        ink, paper = (sum(map(int, shade[4:-1].split(","))) for shade in shades)
        assert ink < 200 < 600 < paper if mode == "light" else paper < 200 < 600 < ink


def test_without_scripts_an_output_is_its_sentence(opened):
    """Mutation: an empty place where a front end runs no script."""
    page = opened(java_script_enabled=False)
    page.set_content(OUTPUTS[0].html())
    assert page.locator("body").inner_text().strip() == repr(OUTPUTS[0])


def test_outputs_that_are_there_before_their_scripts_run(opened):
    """Must catch: one id for all outputs, by which the first script draws in every place."""
    outputs = explorer(FIT), explorer("roofline")
    page = opened(offline=True)
    page.evaluate(PUT, "".join(output.html() for output in outputs))
    said = page.locator(".explorer-sentence").all_text_contents()
    assert [text.replace("\u00a0", " ") for text in said] == [one.sentence for one in outputs]


# --- steppers -------------------------------------------------------------------------------------


def turned(n):
    """A reduce-scatter that goes to the left, as a reader may write it."""
    return [
        [Move(m.target, m.source, (m.source + m.target - m.chunk) % n, m.operator) for m in moves]
        for moves in plans.ring_reduce_scatter(n)
    ]


STEPPERS = [
    stepper("ring all-reduce", 4),
    stepper("reduce-scatter", 4, plan=turned),
    stepper("all-to-all", 8),
]


@pytest.fixture(params=["light", "dark"])
def steppers(opened, request):
    """A notebook on a phone with steppers behind an explorer."""
    page = opened(offline=True, reduced_motion="no-preference", **TOUCH)
    page.watch.forget()
    put(page, request.param, [explorer("roofline"), *STEPPERS])
    yield page, request.param
    assert not page.watch.errors and not page.watch.loaded


def test_a_stepper_goes_by_keyboard_beside_others(steppers):
    """Must catch: a key that the notebook takes, or that moves another output; the book's plan
    instead of the reader's; a card that asks for the page's script; that has the other theme's
    colours, or is wider than a phone."""
    page, mode = steppers
    assert page.evaluate(WORDS)[1:] == [shown.sentence for shown in STEPPERS]
    page.evaluate("addEventListener('keydown', () => { window.taken = true; })")
    own, last = at(page, 2), STEPPERS[1].steps[-1]
    assert own.locator(".arrow").get_attribute("d").count("M") == 4
    own.locator(".explorer-picture").focus()
    for key, number in (("ArrowRight", 2), ("End", 3), ("Home", 0), (" ", 1)):
        page.keyboard.press(key)
        assert own.locator(".stepper-count").text_content() == f"{number} of 3"
    assert own.locator(".stepper-play").get_attribute("aria-label") == "Pause"
    page.keyboard.press("End")
    said = own.locator(".explorer-sentence").text_content().replace("\u00a0", " ")
    assert said == last.sentence and said.endswith("Now each rank has its chunk of the sum.")
    assert not page.evaluate("window.taken")
    assert page.evaluate(WORDS)[1::2] == [STEPPERS[0].sentence, STEPPERS[2].sentence]
    own.locator(".explorer-reset").click()
    assert page.evaluate(WORDS)[2] == STEPPERS[1].sentence
    for place in range(1, 4):
        assert at(page, place).locator("div > div").first.get_attribute("data-theme") == mode
        card = at(page, place).locator(".explorer")
        assert card.evaluate(f"root => ({JS.CARD_PROBLEMS})(root, 1)") == [], place
