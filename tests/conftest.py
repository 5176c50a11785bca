"""Fixtures that tests share: their marks, ranks, the browser, the built book, small builds. Marks
say what a test needs. Two are given here: `browser` to a test with the browser, the built book or
the book of single cards among its fixtures; `ranks` to a test with `worlds` among them, and to
every test of a module that imports the ranks or a notebook's kernel. Without the mark, ranks do not
start. Without a browser its tests are skipped, but with CI=true that is an error."""

import gc
import multiprocessing
import os
import shutil
import sys
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import forkserver
from typing import NamedTuple

import cloudpickle
import pytest
from night import at_night, world_of
from pages import ROOT
from small_books import OF_FORMULAS, builder

from ranklab.ranks import server

# nbformat would compile 38 grammars of addresses: a second, for what no notebook of this book has
sys.modules.setdefault("rfc3987_syntax", None)

# Of few tests, each as long as a file of others; those of faults and kernels wait most of the time.
LONG = ("test_pages_first.py", "test_pages_second.py", "test_record_on_gpus.py")
LONG += ("test_ranks_faults.py", "test_ranks_kernels.py")
ROWS = pytest.StashKey()  # test -> how many rows of it were collected
BROWSERS = (
    # the same engine without windows, menus and tabs, which cost a second for each context
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
HOW_TO_GET_ONE = "no Chromium or Chrome found; on Debian and Ubuntu: apt-get install chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # no network: only this machine has a name
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Objects that are loaded now (PyTorch, SymPy, thousands of tests) stay to the end: the
    collector of cycles need not go through them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@cache
def starts_ranks(module):
    """Whether a test module holds anything of ranklab.ranks, or of what starts kernels."""
    names = (getattr(value, "__module__", None) for value in vars(module).values())
    modules = (getattr(value, "__name__", None) for value in vars(module).values())
    homes = (name for name in (*names, *modules) if isinstance(name, str))
    return any(f"{name}.".startswith(("ranklab.ranks.", "notebook_kernel.")) for name in homes)


def pytest_collection_finish(session):
    """Ranks get the functions of tests, and of their helpers, by value, as they get those of a
    notebook: they cannot import them."""
    helpers = "tables drawn compositions operators random_models refusals test_compression".split()
    helpers += ["test_context_parallel"]
    of_tests = {getattr(item, "module", None) for item in session.items}
    for module in of_tests | set(map(sys.modules.get, helpers)):
        if module and sys.modules.get(module.__name__) is module:
            cloudpickle.register_pickle_by_value(module)


def pytest_itemcollected(item):
    if not item.function.__doc__:
        item.runtest = partial(pytest.fail, "no docstring says what it must catch", pytrace=False)
    if {"chromium", "book_html", "card_pages"} & set(item.fixturenames):
        item.add_marker("browser")
    if "worlds" in item.fixturenames or starts_ranks(item.module):
        item.add_marker("ranks")
    sampled = item.get_closest_marker("one_in")
    if sampled and item.get_closest_marker("nightly") is None:
        rows = item.session.stash.setdefault(ROWS, Counter())
        test = item.nodeid.partition("[")[0]
        if rows[test] % sampled.args[0]:
            item.add_marker("nightly")
        rows[test] += 1
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(trylast=True)  # what is deselected is gone
def pytest_collection_modifyitems(items):
    """Files with long tests come first, those with most tests and the longest of all before them:
    begun at the end, one of them would keep a worker busy while the others have nothing left."""
    order = ("labs", "browser", "slow", "ranks")
    first, count = {}, Counter(item.path for item in items)
    for item in items:
        places = (k for k, mark in enumerate(order) if item.get_closest_marker(mark))
        first[item.path] = min([first.get(item.path, len(order)), *places])
    long = {path for path in count if path.name in LONG}
    items.sort(key=lambda item: (first[item.path], item.path not in long, -count[item.path]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node, ids):
    """Without its group in a test's name, xdist spreads a file over all workers, and each opens
    every page of the book and starts ranks of its own."""
    if node.config.option.dist == "loadgroup" and ids and not any("@" in name for name in ids):
        pytest.exit("this pytest takes no groups from this pytest-xdist: install pytest < 9.2", 3)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    start = server.start
    if item.get_closest_marker("ranks"):
        start_fork_server()
    elif not item.get_closest_marker("labs"):
        server.start = refuse_to_start
    try:
        return (yield)
    finally:
        server.start = start  # also for the trials in assignments/


@cache
def start_fork_server():
    """The fork server imports pytest and the formulas for all ranks: functions of test modules
    bring them there, and each rank would need half a second for its own import."""
    if server.start_method() == "forkserver":
        first = ["coursekit.formulas", "pytest"]  # frozen by the last
        multiprocessing.set_forkserver_preload([*first, "ranklab.ranks.preload"])
        forkserver.ensure_running()


def refuse_to_start(place, method):
    pytest.fail("this test starts ranks, so it needs the mark @pytest.mark.ranks", pytrace=False)


@pytest.fixture(scope="session")
def small_worlds():
    """n -> n ranks that modules share one after another."""
    with ExitStack() as stack:
        yield Worlds(stack, {})


MOST_GROUPS = 4  # of a rank when a test begins


class Worlds(NamedTuple):
    """Ranks that are started when a test first asks, and live until the stack ends."""

    stack: ExitStack
    started: dict

    def of(self, n, **options):
        from ranklab.ranks import ranks

        key = (n, *options.items())
        if key not in self.started:
            world = ranks(n, device="cpu", announce=False, **options)
            self.started[key] = self.stack.enter_context(world)
        return self.started[key]


@pytest.fixture(scope="module")
def worlds(small_worlds):
    """worlds(n, **options): n ranks, started when the first test asks. Up to four live on for the
    next modules, without a process group: a thread of each group wakes a hundred times a second,
    and all of them together took a fifth of the tests' time. Each test finds PyTorch's default
    dtype on them, and few groups of tests before it."""
    import torch

    met = set()
    with ExitStack() as stack:
        own = Worlds(stack, {})

        def world_of(n, **options):
            world = (small_worlds if n <= 4 and not options else own).of(n, **options)
            met.add(world)
            if max(world.run(begin_test)) > MOST_GROUPS:
                world.run(torch.distributed.destroy_process_group)  # they make another
            return world

        yield world_of
        for world in met & {*small_worlds.started.values()}:
            world.run(torch.distributed.destroy_process_group)


def begin_test():
    """On a rank: PyTorch's default dtype. Returns the number of groups that it is in."""
    import torch

    from ranklab.torch_internals import process_groups

    torch.set_default_dtype(torch.float32)
    return len(process_groups())


@pytest.fixture
def two(worlds):
    return worlds(2)


@pytest.fixture
def three(worlds):
    """A number that divides few sizes."""
    return worlds(3)


@pytest.fixture
def four(worlds):
    return worlds(4)


@pytest.fixture(scope="session")
def stand_in():
    """Skips a test where PyTorch takes no stand-in for CUDA: a rehearsal says so, and ends."""
    from ranklab.rehearse.stand_in import TAKES_ONE

    if not TAKES_ONE:
        pytest.skip("this PyTorch takes no stand-in for CUDA")


# For what depends on the number of ranks: by day on three, which divide few sizes.
world = world_of(3, *at_night(2, 4))


def find_browser(names=BROWSERS):
    """Path of the first of `names` that can be run, or None."""
    return next(filter(None, map(shutil.which, names)), None)


def pytest_report_header(config):
    browser = find_browser()
    return (
        f"browser: {browser}"
        if browser
        else f"browser: {HOW_TO_GET_ONE}. The browser tests are skipped."
    )


def require_browser():
    """The path of the browser's program; without one the test is skipped, or fails on a continuous
    integration machine."""
    if path := find_browser():
        return path
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(
            f"{HOW_TO_GET_ONE} (with CI=true the browser tests are never skipped)", pytrace=False
        )
    pytest.skip(HOW_TO_GET_ONE)


@pytest.fixture(scope="session")
def chromium():
    """Path of the browser's program."""
    return require_browser()


@pytest.fixture(scope="session")
def browser(chromium):
    """A Playwright browser without a network. Each test opens its own context or page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def book_html():
    """Folder of the built book; `make test` builds it before it starts pytest."""
    folder = ROOT / "build" / "html"
    if not (folder / "index.html").exists():
        pytest.fail("the book is not built: run make book", pytrace=False)
    return folder


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="session")
def serve():
    """`with serve(folder) as address`: the folder over http, without a slash at the address' end,
    such as http://127.0.0.1:43125."""

    @contextmanager
    def serve_it(folder):
        with ThreadingHTTPServer(
            ("127.0.0.1", 0), partial(_QuietHandler, directory=str(folder))
        ) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()
            thread.join()

    return serve_it


@pytest.fixture(scope="session")
def book_server(book_html, serve):
    """Address of the built book over http."""
    with serve(book_html) as address:
        yield address


@pytest.fixture(scope="session")
def source_suffixes():
    """Sphinx's own default for the suffixes of sources, and a copy of it from before any build."""
    from sphinx.config import Config

    suffixes = Config.config_values["source_suffix"].default
    return suffixes, dict(suffixes)


@pytest.fixture(autouse=True)
def sphinx_defaults(source_suffixes):
    """Sphinx writes the suffixes that an extension adds into its own default, where the next build
    in this process finds them without the extension; so each test gets the default as it was,
    whatever the fixtures of its module have built."""
    suffixes, before = source_suffixes
    suffixes.clear()
    suffixes.update(before)
    yield
    suffixes.clear()
    suffixes.update(before)


@pytest.fixture
def one_thread():
    """On a busy machine the threads of small operations wait for each other far longer than they
    work."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def build(tmp_path):
    """build(name=text, ...) builds these pages; returns (name -> HTML, warnings)."""
    return builder(tmp_path, *OF_FORMULAS)


@pytest.fixture(scope="module")
def build_once(tmp_path_factory):
    """A build for pages that several tests of a module look at."""
    return builder(tmp_path_factory.mktemp("pages"), *OF_FORMULAS)
