"""The page's numbers are Python's: the functions generated from the formulas, their refusals, and
the printed numbers, compared in a real page over http and from a file."""

import json
import math
import random

import pytest
from night import at_night
from reader import swept

from coursekit.formulas import BOOK, InvalidQuantity
from coursekit.formulas.events import COMPUTE, LINK, operations, play, waiting
from coursekit.formulas.registry import show
from coursekit.show.explorer_data import data_of
from coursekit.show.explorers import EXPLORERS
from coursekit.show.format import STYLES, UNITS, format_as, format_to_type, parse_number
from shardlab.pipelines.schedules import Kind
from shardlab.pipelines.simulation import in_flight

# one worker builds the small book of explorers
pytestmark = pytest.mark.xdist_group("explorers")

# half from the controls' grid, half arbitrary
CONFIGURATIONS = 8_000
BAD = ["", "many", "12 GB", 0, -1, 2.5, -0.5, math.nan, math.inf, -math.inf]
BAD += [2**53, 2**53 + 2, 1.125e16, 3e300, 1e-7]

# What goes to the page is written as JavaScript, since JSON has neither NaN nor infinity; what
# comes back is JSON.
RUN = """([name, configurations]) => configurations.map(q => {
  try { return BOOK.models[name](q); }
  catch (refused) { if (!(refused instanceof BOOK.InvalidQuantity)) throw refused;
    return refused.message; }
})"""


@pytest.fixture(scope="module")
def one_page(browser):
    """A page for all tests: a new one for each costs more than its answers."""
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture
def open_page(one_page, explorers_alone):
    """open_page(name, protocol) opens the page with that explorer."""

    def open_it(name, protocol):
        address = explorers_alone[name].address(protocol)
        if one_page.url != address:
            one_page.goto(address)
        return one_page

    return open_it


def from_the_grid(spec, chance):
    """Configurations that a reader can reach with menus and sliders."""
    values, chosen = spec.start(), {}
    for menu in spec.menus:
        chosen[menu.kind] = chance.choice(menu.names)
        values = spec.choose(values, menu.kind, chosen[menu.kind])
    for control in chance.sample(spec.controls, chance.randint(0, 2)):
        values = spec.move(values, control.quantity, chance.choice(control.stops), chosen)
    return values


def anything(name, value, chance):
    """Another value of an input: any number, odd, prime, up to 2^53 - 1; a multiple of what it was,
    which others may divide; or what has to be refused."""
    quantity = BOOK.find(name)
    if chance.random() < 0.2:
        return chance.choice(BAD)
    if name == "step_counter_element_bytes":
        return chance.randint(0, 8)  # Python refuses a dividend in a branch that is not taken
    # of ends shorter than a stage by more than all layers, each of both has its own refusal
    if chance.random() < 0.05 and name != "shorter_ends":
        return chance.randint(2**40, 2**53 - 1)
    if not quantity.whole:
        none = quantity.least == 0 and not quantity.above and chance.random() < 0.5
        most = quantity.most
        any_of = chance.uniform(0.001, most) if most < 10 else 10 ** chance.uniform(9, 17)
        return 0 if none else any_of
    if quantity.most < 10:
        return chance.randint(int(quantity.least), int(quantity.most))
    if chance.random() < 0.5:
        return value * chance.choice((2, 3, 5, 7, 11))
    most = max(int(quantity.least), 2 ** chance.choice((2, 4, 8, 12, 16)))
    return chance.randint(int(quantity.least), most)


def wander(spec, chance, count):
    """Configurations with Python's answers: from the grid, one input or two after the other become
    anything. What is refused is not gone on from."""
    for step in range(count):
        if step % 16 == 0:
            valid = from_the_grid(spec, chance)
        changed = chance.sample(spec.inputs, chance.randint(1, 2))
        tried = valid | {name: anything(name, valid[name], chance) for name in changed}
        said = answer(spec, tried)
        yield tried, said
        if not isinstance(said, str):
            valid = tried


def ask(page, function, *arguments):
    """The value that the JavaScript function returns on the page."""
    return json.loads(page.evaluate(f"JSON.stringify(({function})({json.dumps(arguments)}))"))


def cases(name):
    """(configurations, what Python says to each: every quantity, or the sentence of the
    refusal)."""
    spec, chance = EXPLORERS[name], random.Random(name)
    each = CONFIGURATIONS // len(EXPLORERS) // 2
    reached = [from_the_grid(spec, chance) for _ in range(each)]
    tried, said = zip(*wander(spec, chance, each))
    return [*reached, *tried], [*(answer(spec, values) for values in reached), *said]


def answer(spec, configuration):
    try:
        return spec.compute(configuration)
    except InvalidQuantity as refused:
        return str(refused)


def differences(spec, configurations, expected, got):
    """Sentences about the first configurations in which page and Python differ."""
    for configuration, python, javascript in zip(configurations, expected, got, strict=True):
        if isinstance(python, str) or isinstance(javascript, str):
            if python != javascript:
                yield f"{configuration}: Python {python!r}, page {javascript!r}"
            continue
        longest = max((python[name] for name in python if name.endswith("_seconds")), default=0)
        for name in (*spec.inputs, *spec.formulas):
            exact = (BOOK.formulas.get(name) or BOOK.quantities[name]).whole
            same = (
                python[name] == javascript[name]
                if exact
                else math.isclose(python[name], javascript[name], rel_tol=1e-12)
                # a difference of two long times has their rounding
                or name.endswith("_exposed_seconds")
                and math.isclose(python[name], javascript[name], abs_tol=1e-15 * longest)
            )
            if not same:
                yield (
                    f"{configuration}: {name} is {python[name]!r} in Python, {javascript[name]!r}"
                    " on the page"
                )


@pytest.mark.parametrize("name", EXPLORERS)
def test_functions_and_refusals(open_page, name):
    """On 8,000 configurations in all. Mutations: ceilDiv as Math.ceil(a * (1 / b)), or floorDiv
    likewise; drop the check in `exact`; write a float as String() does; take infinity for a
    number."""
    spec, (configurations, expected) = EXPLORERS[name], cases(name)
    refused = [text for text in expected if isinstance(text, str)]
    assert len(refused) > len(expected) / 20 and len(set(refused)) > min(
        50, 3 * len(spec.inputs)
    ), "the configurations test no refusals"
    assert len(expected) - len(refused) >= len(expected) / 2, "few configurations are valid"
    got = ask(open_page(name, "http"), RUN, name, configurations)
    assert not list(differences(spec, configurations, expected, got))[:3]


FOLLOW = """([links, linked, begins]) => begins.map(([values, preset, moves]) =>
  moves.map(([quantity, stop]) => {
    const after = BOOK.follow(links, {...values, [quantity]: stop}, [quantity], preset);
    return linked.map(name => after[name]);
  }))"""


@pytest.mark.parametrize("every", [4, *at_night(1)])
def test_what_follows_every_stop(open_page, every):
    """From the start and each preset, by day every fourth. Must catch: a link that only one of both
    languages has; a follower that stays where it divides nothing; the nearest divisor below in one
    language and above in the other. (That no stop is refused:
    test_a_control_never_refuses_its_own_stops.)"""
    page = open_page("does-it-fit", "file")
    for name, spec in EXPLORERS.items():
        linked = list(dict.fromkeys(name for link in spec.links for name in link.quantities))
        moves = [(control.quantity, stop) for control in spec.controls for stop in control.stops]
        start, begins, expected = spec.start(), [], []
        chosen = [{}, *({menu.kind: of} for menu in spec.menus for of in menu.names)]
        for choice in chosen[::every]:
            sets = {name for one in choice.items() for name in spec.preset(*one)}
            if choice and not {*linked} & sets:
                continue  # as at the start
            values = spec.choose(start, *next(iter(choice.items()))) if choice else start
            of_all = spec.chosen_at_start() | choice
            preset = {k: v for one in of_all.items() for k, v in spec.preset(*one).items()}
            begins.append((values, preset, moves))
            after = (spec.move(values, *move, choice) for move in moves)
            expected.append([[one[name] for name in linked] for one in after])
        assert ask(page, FOLLOW, data_of(spec)["links"], linked, begins) == expected, name


def pictures_of(kind):
    """(explorer, place) of every picture of a kind, as rows of a test."""
    return pytest.mark.parametrize(
        ("name", "place"),
        [
            (name, place)
            for name, spec in EXPLORERS.items()
            for place, picture in enumerate(spec.pictures)
            if picture.kind == kind
        ],
    )


def valid(spec, chance, count):
    """Results of Python for that many configurations that a reader can reach."""
    found = []
    while len(found) < count:
        try:
            found.append(spec.compute(from_the_grid(spec, chance)))
        except InvalidQuantity:
            continue
    return found


SWEEP = """([model, sweep, stops, lines, configurations]) =>
  configurations.map(values => stops.map(stop => {
  try { return lines.map(([name, given]) =>
    BOOK.models[model]({...values, ...given, [sweep]: stop})[name]); }
  catch (refused) { if (!(refused instanceof BOOK.InvalidQuantity)) throw refused; return null; }
}))"""


@pytest.mark.one_in(2)
@pictures_of("curves")
def test_the_lines_of_curves(open_page, name, place):
    """Mutations: the swept quantity left out of the function's inputs, so that it is computed; a
    stop that is refused ends the line."""
    spec, chance = EXPLORERS[name], random.Random(name)
    curves, configurations = spec.pictures[place], valid(spec, chance, 20)
    lines = [(line.quantity, dict(line.given)) for line in curves.lines]
    got = ask(
        open_page(name, "file"),
        SWEEP,
        f"{name}/{place}",
        curves.sweep,
        curves.stops,
        lines,
        configurations,
    )
    for configuration, found in zip(configurations, got, strict=True):
        wanted = swept(spec, curves, configuration)
        for stop, values in zip(curves.stops, found, strict=True):
            expected = wanted.get(stop)
            assert (expected is None) == (values is None), (configuration, stop)
            assert values is None or values == pytest.approx(
                [expected[line.name] for line in curves.lines], rel=1e-12
            )


PLAY = """([name, place, configurations]) => {
  const card = document.getElementById("explorer-" + name), events = BOOK.events;
  const spec = JSON.parse(card.querySelector("script[type='application/json']").textContent);
  return configurations.map(values => {
    const ran = events.play(events.operations(spec.pictures[place].step, values));
    return [ran.map(one => [one.name, one.stream, one.phase, one.start, one.end]),
      events.waiting(ran)];
  });
}"""


@pytest.mark.one_in(2)
@pictures_of("streams")
def test_the_events_of_streams(open_page, name, place):
    """Must catch: a condition read as its opposite; a phase that does not wait for the link; an
    event that waits for the first of a name, not for the latest."""
    spec, chance = EXPLORERS[name], random.Random(name)
    step, configurations = spec.pictures[place].step, valid(spec, chance, 60)
    got = ask(open_page(name, "file"), PLAY, name, place, configurations)
    for configuration, (played, idle) in zip(configurations, got, strict=True):
        ran = play(operations(step, configuration))
        assert [tuple(one) for one in played] == [
            (one.name, [COMPUTE, LINK].index(one.stream), one.phase, one.start, one.end)
            for one in ran
        ]
        assert [tuple(span) for span in idle] == list(waiting(ran))


SIMULATE = """([name, place, configurations]) => {
  const card = document.getElementById("explorer-" + name), schedules = BOOK.schedules;
  const spec = JSON.parse(card.querySelector("script[type='application/json']").textContent)
    .pictures[place];
  return configurations.map(values => {
    const plan = schedules.planOf(spec, values), costs = schedules.costsOf(spec, plan, values);
    return [schedules.simulate(plan, costs), schedules.inFlight(plan),
      BOOK.derived.schedule(spec, values)];
  });
}"""


def configurations_of_schedules(spec, picture, chance):
    """Every schedule that the card offers, twice, with costs from the controls' stops."""
    found = []
    stops = {control.quantity: control.stops for control in spec.controls}
    for name in 2 * list(spec.menus[0].names):
        for ranks in stops[picture.ranks]:
            for microbatches in stops[picture.microbatches]:
                values = spec.choose(spec.start(), spec.menus[0].kind, name)
                moves = {picture.ranks: ranks, picture.microbatches: microbatches}
                moves.update((cost, chance.choice(stops[cost])) for cost in picture.seconds)
                for quantity, stop in moves.items():
                    values = spec.move(values, quantity, stop)
                found.append(spec.compute(values))
    return found


@pictures_of("schedule")
def test_the_schedules(open_page, name, place):
    """Must catch: a message that does not wait for the one before it on its link; a stage of the
    neighbour taken for one of the own rank; a head on every stage of the last rank; memory that is
    free after I."""
    spec, chance = EXPLORERS[name], random.Random(name)
    picture = spec.pictures[place]
    configurations = configurations_of_schedules(spec, picture, chance)
    kinds = [kind.value for kind in Kind]
    got = ask(open_page(name, "file"), SIMULATE, name, place, configurations)
    for configuration, (spans, held, derived) in zip(configurations, got, strict=True):
        assert spans == [
            [
                [[a.stage, kinds.index(a.kind.value), a.microbatch], begin, end]
                for a, begin, end in own
            ]
            for own in picture.timeline(configuration).spans
        ]
        assert held == in_flight(picture.plan(configuration))
        assert derived == pytest.approx(picture.derived(configuration), rel=1e-9)


def order_of_checks(spec):
    """The inputs in the order in which Python names those that are refused."""
    values, order = dict.fromkeys(spec.inputs, "many"), []
    while True:
        try:
            spec.compute(values)
            return order
        except InvalidQuantity as refused:
            order.append(refused.quantity)
            values[refused.quantity] = spec.start()[refused.quantity]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", EXPLORERS)
def test_every_kind_of_refusal_at_every_input(open_page, name):
    """Mutation: swap the order of two checks in `given`, or check the inputs in another order than
    Python."""
    spec = EXPLORERS[name]
    configurations = [{**spec.start(), input_: bad} for input_ in spec.inputs for bad in BAD]
    order = order_of_checks(spec)
    assert sorted(order) == sorted(spec.inputs)
    for pair in zip(order, order[1:]):
        for first, second in (pair, pair[::-1]):
            configurations.append({**spec.start(), first: "many", second: 0})
    expected = [answer(spec, configuration) for configuration in configurations]
    got = ask(open_page(name, "file"), RUN, name, configurations)
    assert not list(differences(spec, configurations, expected, got))[:3]


def numbers(chance):
    """Thousands of values of every size, ties of rounding and edges of units among them."""
    yield from (0, 2.5, 1.125, 9.995, 9.996, 999.5, 999.4999, 0.001, 0.0009995, 0.00099949, 0.29)
    yield from (999_999.5, 999_500, 1e6, 1e15, 2**53 - 1, 2**30, 2**40, 1023 * 2**20, 1, 1e-5)
    yield from (1024 * 1023.9, 1e16, 1e21, 1e22, 1.125e16, 1.135e16, 86_400, 31_536_000, 1e-7)
    yield from (1e-15, -5, -0.005, -25 * 2**20, -1234.5, -999.9996, 1e-9, 1e99, -1e99, 1e20)
    yield from (0.0001, 4.34e-19)  # a difference of equal times
    for _ in range(1500):
        yield chance.randrange(2 ** chance.randint(1, 53))
        yield 10 ** chance.uniform(-12, 30)
        yield chance.randrange(1, 10_000) / 8  # exact ties at the third digit
        yield float(f"{chance.uniform(0, 1000):.{chance.randint(1, 4)}g}")


def test_printed_numbers(open_page):
    """Mutations: toFixed instead of toPrecision; halves up in `threeDigits`; a unit chosen from the
    rounded value alone."""
    values, styles, typed = (
        list(numbers(random.Random(3))),
        list(STYLES),
        ["exact", "count", "percent", *UNITS],
    )
    expected = [
        [
            *(format_as(value, style) for style in styles),
            show(value),
            *(format_to_type(value, style) for style in typed),
        ]
        for value in values
    ]
    got = ask(
        open_page("does-it-fit", "file"),
        """([values, styles, typed]) => values.map(value => [
      ...styles.map(style => BOOK.format(value, style)), BOOK.show(value),
      ...typed.map(style => BOOK.formatToType(value, style))])""",
        values,
        styles,
        typed,
    )
    wrong = [
        (value, style, python, page)
        for value, ours, theirs in zip(values, expected, got, strict=True)
        for style, python, page in zip([*styles, "show", *typed], ours, theirs, strict=True)
        if python != page
    ]
    assert not wrong[:5]


def test_typed_numbers(open_page):
    """A typed number is the same number, or the same text, on the page and in a lab.

    Mutation: parseFloat, which takes 12 out of "12 GB"; \\d without ASCII in Python."""
    texts = ["12,288", "175B", "300e9", "1.5T", "40%", "0.27t", " 1_000 ", "1 000", "", "abc", "."]
    texts += ["5.", ".5", "-3", "+7", "1e400", "NaN", "Infinity", "1,2", "12,2888", "0x10", "1.1.1"]
    texts += ["12 GB", "1e-3k", "1,000.5", "\u0661", "1e", "--1", "0", "-0", "00012"]
    texts += ["9007199254740993"]
    texts += [
        f"{number}{unit}"
        for units in UNITS.values()
        for unit, _, _ in units
        for number in ("1.5 ", "007", "3.4", "-2k ", "x")
    ]
    asked = [
        (text, style, shown)
        for text in texts
        for style in (None, "percent", *UNITS)
        for shown in ("", "40%", "80 ms", "-1,5.0GB/s", "25 MiB", "175B", "x MiB")
    ]
    expected = [parse_number(*each) for each in asked]
    got = open_page("does-it-fit", "file").evaluate(
        "asked => asked.map(each => BOOK.parse(...each))", asked
    )
    numbers = [
        [answer if isinstance(answer, str) else float(answer) for answer in answers]
        for answers in (expected, got)
    ]
    assert dict(zip(asked, numbers[0], strict=True)) == dict(zip(asked, numbers[1], strict=True))
