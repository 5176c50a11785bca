"""The explorers of the labs, driven by setting the value of a control. They are made for ipywidgets
7.7 (Colab) and 8, so nothing here may name a trait that only one of them has."""

import re
import subprocess
import sys
from html import escape

import pytest
from told import told

from coursekit.formulas import InvalidQuantity, quantities, states_bytes  # noqa: F401 (told.md)
from coursekit.show import widgets as module
from coursekit.show.explorers import EXPLORERS
from coursekit.show.widgets import OWN, explorer

FIT = "does-it-fit"
LLAMA_STATES = states_bytes(**quantities(model="Llama 7B", recipe="bf16 + fp32 master"))


@pytest.fixture
def fit():
    return explorer("does-it-fit")


@pytest.fixture
def long():
    return explorer("fits-and-how-long")


def total(widget):
    """The bytes of all parts, in GB, as the picture says them."""
    sizes = re.findall(r"predicted: [^=]*= ([\d,]+) B", widget.drawing.value)
    return sum(int(size.replace(",", "")) for size in sizes) / 1e9


def message(widget, quantity):
    return widget.errors[quantity].value


# ---------------------------------------------------------------- what is shown


@pytest.mark.parametrize("name", list(EXPLORERS))
def test_it_starts_as_the_page_does(name):
    """Mutations: the presets not applied at the start; a control without its widget; a menu that
    names another preset."""
    spec, widget = EXPLORERS[name], explorer(name)
    assert widget.values == spec.start()
    assert widget.sentence == spec.say(spec.compute(spec.start()))
    assert escape(widget.sentence) in widget.words.value
    assert {kind: menu.value for kind, menu in widget.menus.items()} == spec.chosen_at_start()
    assert list(widget.sliders) == list(widget.boxes)
    controls = {control.quantity for control in spec.controls}
    assert {*widget.sliders, *widget.choices} == set(widget.errors) == controls
    assert widget.drawing.value.count("<svg") == len(spec.pictures)
    for picture in spec.pictures:
        assert escape(picture.title) in widget.drawing.value


def test_slider_box_sentence_and_figure_follow_one_another(fit):
    """Mutations: the box not written when the slider moves, or the slider when the box does; the
    old sentence kept; the figure drawn from the start's values."""
    before = total(fit)
    fit.sliders["gpus_per_copy"].value = 2
    assert fit.boxes["gpus_per_copy"].value == "2" and "Each of the 2 GPUs" in fit.sentence
    assert total(fit) == pytest.approx(before / 2) == pytest.approx(LLAMA_STATES / 2e9)
    fit.boxes["gpus_per_copy"].value = "1"
    assert fit.sliders["gpus_per_copy"].value == 1 and total(fit) == pytest.approx(before)


def test_a_box_takes_units_and_points_stand_beside_the_line():
    """One line in a lab: the machine's own rates, and what was measured on it.

    Mutations: units refused in a lab that the page takes; measured points dropped."""
    widget = explorer(
        "roofline",
        flops_per_second=2e12,
        memory_bytes_per_second=50e9,
        operation_element_bytes=4,
        measured={"attainable_flops_per_second": [(10.7, 1e11), (85.3, 8e11)]},
    )
    assert widget.menus["gpu"].value == OWN
    assert widget.boxes["flops_per_second"].value == "2 TFLOP/s"
    assert widget.drawing.value.count('data-measured="attainable_flops_per_second"') == 2
    widget.boxes["memory_bytes_per_second"].value = "100 GB/s"
    assert widget.values["memory_bytes_per_second"] == 100e9 and "this chip, 20:" in widget.sentence
    cost = explorer("collective-cost", link="Ethernet, 1 Gbit/s", ranks=4, ranks_per_node=1)
    cost.boxes["message_bytes"].value = "16 MiB"
    cost.boxes["latency_seconds"].value = "50 µs"
    assert (cost.values["message_bytes"], cost.values["latency_seconds"]) == (2**24, 5e-5)


def test_a_menu_says_own_values_when_they_are(fit):
    """Mutation: the last choice left standing in the menu over values that are another model's."""
    fit.boxes["layers"].value = "33"
    assert fit.menus["model"].value == OWN and fit.menus["gpu"].value == "A100 SXM 80GB"
    fit.boxes["layers"].value = "32"
    assert fit.menus["model"].value == "Llama 7B"
    fit.menus["model"].value = OWN  # choosing it changes nothing
    assert fit.menus["model"].value == "Llama 7B" and fit.values == EXPLORERS["does-it-fit"].start()


def test_a_twin_among_presets_stays_chosen(fit):
    """Mutation: the first preset with these values shown: "autocast Adam" jumps back to "fp32
    Adam", its equal in bytes."""
    fit.menus["recipe"].value = "autocast Adam"
    assert fit.menus["recipe"].value == "autocast Adam" and 'recipe="autocast Adam"' in fit.call()


def test_it_is_drawn_once_for_each_valid_change(monkeypatch):
    """Mutations: a redraw for every control that follows; a picture of refused values; the figures
    of the start drawn again."""
    drawn = []
    draw = module.drawings
    monkeypatch.setattr(module, "drawings", lambda *given: drawn.append(0) or draw(*given))
    widget = explorer("fits-and-how-long")
    start = widget.drawing.value
    assert len(drawn) == 1
    widget.sliders["gpus_per_copy"].value = 64
    after = widget.drawing.value
    widget.boxes["gpus"].value = "0"
    widget.menus["gpu"].value = "T4"  # there is still no GPU
    assert len(drawn) == 2 and start != after and after in widget.drawing.value


def test_a_slider_follows_the_hand():
    """Must catch: sliders that wait for the release; a stop that goes while the hand passes it, so
    that all places behind it move."""
    widget = explorer("does-it-fit")
    assert all(slider.continuous_update for slider in widget.sliders.values())
    widget.boxes["hidden"].value = "4,000"
    slider = widget.sliders["hidden"]
    before = slider.options
    assert 4000 in [value for _, value in before]
    slider.value = 5120
    assert slider.options == before and widget.values["hidden"] == 5120
    widget.boxes["hidden"].value = "3,200"
    assert {4000, 3200} & {value for _, value in slider.options} == {3200}


def test_lines_are_asked_for_again_where_they_move(monkeypatch):
    """Must catch: each stop recomputed for each place that a hand passes; lines of the values
    before."""
    widget, asked = explorer("collective-cost"), []
    sampled = type(widget.spec).sampled
    counted = lambda self, *given: asked.append(len(given[2])) or sampled(self, *given)
    monkeypatch.setattr(type(widget.spec), "sampled", counted)
    before = widget.drawing.value
    widget.boxes["message_bytes"].value = "16 MiB"
    assert max(asked) <= 1 and widget.drawing.value != before
    widget.boxes["latency_seconds"].value = "50 µs"
    assert max(asked) > 10


def test_reset(fit):
    """Mutations: Reset to the page's start and not to this widget's; the dict of the start changed
    by moving."""
    own = explorer("does-it-fit", model="GPT-2 1.5B", gpu="T4")
    start = dict(own.values)
    own.menus["gpu"].value = "B300 SXM"
    own.sliders["layers"].value = 3
    own.reset()
    assert own.values == start
    assert own.menus["model"].value == "GPT-2 1.5B"
    assert own.boxes["layers"].value == "48"


def test_choices_are_buttons_and_groups_fold():
    """Mutations: a choice without its words; the value of a start that is no option lost; all
    groups open, or built twice."""
    widget = explorer("where-the-memory-goes", dropout=0.25, accumulation_steps=2)
    assert widget.choices["optimizer_mode"].options == (("loop", 0), ("foreach", 1), ("fused", 2))
    assert widget.choices["dropout"].options == (("off", 0), ("on", 0.1), ("25%", 0.25))
    assert widget.choices["dropout"].value == 0.25
    rows = [child for column in widget.children[2].children for child in column.children]
    groups = [child for child in rows if hasattr(child, "selected_index")]
    folded = {group.get_title(0): group.selected_index for group in groups}
    assert folded == {"Batch": 0, "Attention and optimizer": None, "Model": None}
    widget.choices["dropout"].value = 0
    widget.choices["fused_attention"].value = 0
    assert widget.values["dropout"] == 0 and widget.shown["keeps_scores"] == 1
    assert "attention, activations: " in widget.drawing.value
    widget.choices["fused_attention"].value = 1
    assert "attention, activations: " not in widget.drawing.value
    assert widget.choices["dropout"].options == (("off", 0), ("on", 0.1))


# ---------------------------------------------------------------- bad input


def test_a_refusal_is_said_and_the_picture_stays(fit):
    """Mutations: the exception let through (the widget goes silent); the figure cleared; the
    message at the wrong control; the message left standing once the value is good."""
    before, sentence = total(fit), fit.sentence
    fit.boxes["heads"].value = "0"
    assert "“attention heads” = 0: it must be" in message(fit, "heads")
    assert "last valid values" in fit.status.value
    assert (total(fit), fit.sentence, fit.boxes["heads"].value) == (before, sentence, "0")
    fit.boxes["heads"].value = "24"
    assert message(fit, "heads") == message(fit, "hidden") == fit.status.value == ""
    assert total(fit) > before
    assert fit.sentence.endswith(" Moved along: hidden size to 4,104, key value heads to 24.")
    fit.boxes["hidden"].value = "-3"
    assert fit.sentence.endswith(" to 24.")  # the picture's, which stays
    fit.sliders["layers"].value = 12
    assert "“hidden size” = -3" in message(fit, "hidden")


def test_what_is_typed_is_text_and_not_markup(fit):
    """Mutation: the message put into the page unescaped."""
    fit.boxes["layers"].value = "<img src=x onerror=alert(1)>"
    assert "<img" not in message(fit, "layers") and "&lt;img" in message(fit, "layers")


@pytest.mark.parametrize(
    "name, arguments, error, said",
    told("test_show_widgets::test_a_wrong_call_is_refused", globals()),
)
def test_a_wrong_call_is_refused(name, arguments, error, said):
    """Mutation: unknown names dropped: a measurement under a misspelt name would then vanish from
    the picture."""
    with pytest.raises(error, match=said):
        explorer(name, **arguments)


# ---------------------------------------------------------------- beside a measurement, and as text


def test_a_measurement_stands_beside_the_formula_and_stays():
    """Must catch: `measured` not handed to the figure; the measured bar moving with the slider; a
    bar that was measured at other values than those shown, without a word."""
    spec = EXPLORERS["does-it-fit"]
    parts = [part.quantity for part in spec.pictures[0].parts]
    computed = spec.compute(spec.start())
    widget = explorer("does-it-fit", measured={name: computed[name] for name in parts})

    def ends(kind):
        return re.findall(rf"{kind}: [^=]*= ([\d,]+) B", widget.drawing.value)

    assert ends("predicted") == ends("measured") and "fill: measured" in widget.drawing.value
    weighed = ends("measured")
    widget.sliders["layers"].value = 16
    assert ends("measured") == weighed != ends("predicted")
    assert "fill: measured with layers 32<" in widget.drawing.value
    for slider in list(widget.sliders.values())[1:4]:
        slider.value = slider.options[0][1]
    assert "fill: measured where the explorer began<" in widget.drawing.value
    widget.reset()
    assert "fill: measured<" in widget.drawing.value


def test_marks_say_on_how_many_ranks_they_were_measured():
    """Must catch: marks of four ranks beside the lines of sixteen; the swept message named, of
    which each mark has its own."""
    points = {"tree_all_reduce_seconds": [(2**16, 1e-3)]}
    widget = explorer("collective-cost", measured=points, ranks=4, ranks_per_node=1)
    widget.sliders["message_bytes"].value = 2**20
    assert "marks: measured<" in widget.drawing.value
    widget.sliders["ranks"].value = 16
    assert "marks: measured with ranks 4<" in widget.drawing.value


def test_a_start_with_this_machine():
    """Mutation: quantities without a control (the rate, the memory) not taken from the start."""
    widget = explorer(
        "fits-and-how-long",
        gpus=1,
        data_parallel=1,
        gpus_per_copy=1,
        flops_per_second=1e11,
        gpu_memory_bytes=10**10,
    )
    assert widget.shown["achieved_flops_per_second"] == 1e11 * 0.4
    assert widget.menus["gpu"].value == OWN
    widget.menus["gpu"].value = "T4"
    assert widget.shown["flops_per_second"] == 65e12


def test_python_gives_the_same(fit):
    """Mutation: the call of the start shown, not that of the values."""
    fit.boxes["layers"].value = "33"
    found = {}
    exec(fit.call().replace("\nexplain(", "\nanswer = explain("), found)
    assert found["answer"]["states_bytes_per_gpu"] == fit.shown["states_bytes_per_gpu"]


def test_as_text_it_is_the_sentence(fit):
    """Mutation: ipywidgets' own text, kilobytes of traits, in every stored notebook."""
    assert repr(fit) == f"Does it fit? {fit.sentence}"


# ---------------------------------------------------------------- what the labs rely on


@pytest.mark.slow
def test_an_explorer_needs_neither_torch_nor_plotly_nor_an_output():
    """Must catch: torch, which the book is built without; plotly, which is blank in an Output on
    Colab; an Output, in which nbclient can hang."""
    code = """
import gc, sys, ipywidgets
from coursekit.show.widgets import explorer
shown = explorer("zero")
assert not {"torch", "sympy", "numpy", "plotly"} & set(sys.modules)
kinds = {type(found).__name__ for found in gc.get_objects() if isinstance(found, ipywidgets.Widget)}
assert "HTML" in kinds and "Output" not in kinds, kinds
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_labels_are_never_cut():
    """Must catch: a width of ipywidgets' own for the label of a menu, a slider or a choice, which
    cuts "Link between nodes" to "Link betw..."."""
    widget = explorer("tensor-parallel")
    handles = [*widget.menus.values(), *widget.sliders.values(), *widget.choices.values()]
    assert handles and {handle.style.description_width for handle in handles} == {"initial"}


def test_a_long_label_leaves_a_slider_its_track():
    """Must catch: the inner size of a product, whose label has 51 characters, beside its box: the
    handle was on the box."""
    sliders = explorer("roofline").sliders
    assert sliders["operation_depth"].layout.flex == "1 1 100%"
    assert sliders["operation_rows"].layout.flex != "1 1 100%"


def test_many_pictures_scroll_beside_their_controls():
    """Must catch: a third picture out of sight of the slider that moves it; two pictures that
    scroll for no reason."""
    many, few = explorer("recompute"), explorer("where-the-memory-goes")
    assert many.drawing.layout.max_height and "auto" in many.drawing.layout.overflow
    assert few.drawing.layout.max_height is None
