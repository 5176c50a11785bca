"""The explorers on pages that are not the book's, without the book's files."""

import re

import pytest
from pages import ROOT
from visit import PHONE

from bookkit.modules import export, module, page
from coursekit.show.explorers import EXPLORERS

TEACHING = ROOT / "chapters" / "teaching.md"
FILES = [f"{name}.js" for name in EXPLORERS]
IMPORTS = "".join(f'import e{k} from "./{name}";\n' for k, name in enumerate(FILES))
EMBED = f"""<!doctype html><meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,"><style>section {{ float: left }}</style><main></main>
<script type="module">
{IMPORTS}
const modules = [{", ".join(f"e{k}" for k in range(len(EXPLORERS)))}];
const place = () => document.querySelector("main").appendChild(document.createElement("section"));
window.show = (k, asked) => {{ const el = place(); return modules[k].render({{ el, ...asked }}); }};
const alone = location.search.slice(1); // the number of the only one to be shown
modules.forEach((one, k) => {{ if (!alone || +alone === k) {{ show(k, {{}}); show(k, {{}}); }} }});
</script>
"""
# The words of each card, in which lines do not break between number and unit.
WORDS = """[...document.querySelectorAll("section")].map(place => {
  const inside = place.firstChild.shadowRoot;
  return [...inside.querySelectorAll(".explorer-words p, [role=alert]")]
    .map(p => p.textContent.replaceAll("\\u00a0", " ")).join(" ");
})"""
MOVE = """place => {
  const root = document.querySelectorAll("section")[place].firstChild.shadowRoot;
  const input = root.querySelector(".explorer-control input:is([type=range], [type=radio])");
  if (input.type === "radio") {
    const other = [...root.querySelectorAll(`[name=${input.name}]`)].find(one => !one.checked);
    other.click();
  } else {
    input.value = +input.value ? +input.value - 1 : 1;
    for (const event of ["input", "change"]) input.dispatchEvent(new Event(event));
  }
}"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    export(folder, module, page)
    (folder / "page.html").write_text(EMBED, encoding="utf-8")

    [printed] = re.findall(r"(?ms)^```html\n(.*?)^```", TEACHING.read_text(encoding="utf-8"))
    (folder / "printed.html").write_text(printed, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server(modules, serve):
    with serve(modules) as address:
        yield address


@pytest.fixture
def shown(opened):
    """shown(address, **options): a page there on which an explorer lives."""

    def show(address, **options):
        page = opened(address, **options)
        page.wait_for_selector(".explorer.live svg[width]")
        return page

    return show


def test_every_explorer_lives_on_a_bare_page_beside_all_others(shown, server):
    """Must catch: a script or a style that only the book's pages have, a card that moves its
    neighbour, that is wider than a phone, or narrow in a place as wide as its content."""
    page = shown(f"{server}/page.html", viewport=PHONE)
    before = page.evaluate(WORDS)
    assert before[::2] == before[1::2] and len(set(before)) == len(EXPLORERS)
    for place, name in enumerate(EXPLORERS):
        page.evaluate(MOVE, 2 * place)
        after = page.evaluate(WORDS)
        moved = [at for at, text in enumerate(after) if text != before[at]]
        assert moved == [2 * place], name
        before = after
    wide = page.evaluate("[...document.querySelectorAll('section')].map(one => one.offsetWidth)")
    assert min(wide) > 300 and max(wide) < PHONE["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert not page.watch.errors and not page.watch.failed
    assert page.watch.loaded == {f"{server}/{name}" for name in ("page.html", *FILES)}


def test_a_page_sets_where_an_explorer_begins(shown, server):
    """Must catch: an option that the sentence does not follow, a reset that forgets it, an unknown
    one that is dropped without a word, a widget's trait that is not read, a card that stays."""
    zero = list(EXPLORERS).index("zero")
    page = shown(f"{server}/page.html?{zero}")
    ask = f"asked => {{ window.ended = show({zero}, asked); }}"
    page.evaluate(ask, {"options": {"model": "GPT-3 175B", "zero_stage": 3, "data_parallel": "64"}})
    start = page.evaluate(WORDS)[-1]
    assert start.startswith("In stage 3 each of 64 ranks keeps 43.7 GB")
    page.evaluate(MOVE, 2)
    assert page.evaluate(WORDS)[-1] != start
    page.locator(".explorer-reset").last.click()
    assert page.evaluate(WORDS)[-1] == start
    page.evaluate("ended()")
    assert page.locator("section > *").count() == 2
    trait = "({ get: name => ({ options: { zero_stage: 2 } })[name] })"
    page.evaluate(f"() => {{ show({zero}, {{ model: {trait} }}); }}")
    assert page.locator(".explorer-sentence").last.inner_text().startswith("In stage 2")
    told = f"asked => {{ try {{ show({zero}, asked); }} catch (no) {{ return no.message; }} }}"
    for options, sentence in (
        ({"size": "GPT-2"}, "zero: size is no option; there are model, recipe, gpu, "),
        ({"model": "GPT-9"}, "zero: model = GPT-9: there are "),
        ({"data_parallel": 0}, "zero: data_parallel = 0: data_parallel must be "),
        ({"data_parallel": "many"}, "zero: data_parallel = many: data_parallel must be "),
        ({"theme": "blue"}, "zero: theme = blue: it must be light or dark."),
    ):
        assert page.evaluate(told, {"options": options}).startswith(sentence)
        assert page.locator("[role=alert]").last.inner_text().startswith(sentence)
    assert not page.watch.errors


def test_the_lines_that_the_book_prints_show_an_explorer(shown, server):
    """Must catch: a page in the text that does not run, or does not begin where it says."""
    page = shown(f"{server}/printed.html")
    assert page.locator(".explorer-sentence").inner_text().startswith("In stage 3")


def test_a_card_is_as_dark_as_its_page_and_keeps_the_keys_to_itself(shown, modules):
    """Must catch: a file that needs a server, a card that stays light when its page turns dark or
    that does not obey `theme`, an arrow that also turns the page's slide, equations that do not
    come."""
    address = (modules / "zero.html").as_uri()
    page = shown(f"{address}#zero_stage=2", color_scheme="dark")
    theme = "document.querySelector('#here > div').dataset.theme"
    assert page.evaluate(theme) == "dark"
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"{theme} === 'light'")
    page.evaluate("document.body.style.color = '#eee'")
    page.wait_for_function(f"{theme} === 'dark'")
    page.evaluate(
        "window.heard = ''; addEventListener('keydown', event => { heard += event.key; })"
    )
    words = page.locator(".explorer-sentence")
    assert words.inner_text().startswith("In stage 2")
    page.locator("[type=range]").first.focus()
    told = words.inner_text()
    page.keyboard.press("ArrowRight")
    assert words.inner_text() != told and page.evaluate("heard") == ""
    page.locator(".explorer-why > summary").click()
    page.wait_for_function(
        "document.querySelector('#here > div').shadowRoot"
        ".querySelector('.explorer-sum b').textContent.includes('GB')"
    )
    assert not page.watch.errors and not page.watch.failed
    page.goto("about:blank")
    page.goto(f"{address}#theme=dark")
    page.wait_for_selector(".explorer.live")
    assert page.evaluate(theme) == "dark"
