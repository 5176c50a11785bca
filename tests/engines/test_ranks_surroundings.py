"""Ranks in surroundings that are not right, and work that leaves things as they should not be: the
next piece of work is right, or one sentence says what is wrong."""

import linecache
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from types import CodeType, SimpleNamespace

import cloudpickle
import pytest
from forked_script import forked
from notebook_kernel import descendants, gone
from refusals import said_by
from told import told

from ranklab.ranks import RankDied, RankError, RanksInterrupted, RanksTooSlow, ranks
from ranklab.ranks import watch as watching
from ranklab.ranks.board import Board, CallKind, Post, Unfinished, shortened
from ranklab.ranks.checks import Checks
from ranklab.ranks.faults import verdict
from ranklab.ranks.findings import (
    Circle,
    Missed,
    closed,
    disagreement,
    first_finding,
    root,
    unfinished,
)
from ranklab.ranks.links import Host
from ranklab.ranks.messages import Raised, Returned
from ranklab.ranks.output import KEPT_BYTES, pipe, write_escaped
from ranklab.ranks.place import SharedFile
from ranklab.ranks.watch import Member, Outcome, Watch
from ranklab.ranks.wire import ParentsEnd, RanksEnd, packed

pytestmark = pytest.mark.ranks
NIGHTLY = pytest.mark.nightly
# by day, spawn: test_spawn_does_the_same
METHODS = pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=NIGHTLY)])


@pytest.fixture(scope="module")
def two():
    with ranks(2, device="cpu", patience_seconds=2, announce=False) as world:
        yield world


def rank_of_two():
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return dist.get_rank(), x.item()


RIGHT = [(0, 2.0), (1, 2.0)]


# --- messages -------------------------------------------------------------------------------------


def test_an_argument_that_a_stopped_rank_does_not_read(two):
    """Must catch: a parent that blocks while it sends more than a socket holds; the limit then does
    not count, and the stop button does nothing."""
    os.kill(two.members[1].process.pid, signal.SIGSTOP)
    with pytest.raises(RanksTooSlow, match="rank 1 had not ended") as caught:
        two.run(len, b"x" * 10**7, limit_seconds=0.5)
    assert "Rank 1 gave no answer: its process was stopped" in str(caught.value)
    assert two.run(rank_of_two) == RIGHT


def test_answers_belong_to_their_question(two):
    """Must catch: answers without a number, where a process that the work has forked answers too:
    each later run then returns what the one before should have returned. Either guard is enough:
    the parent's look at the number, or the end of a forked process."""

    def fork():
        os.fork()
        return "of the first call"

    two.run(fork)
    time.sleep(0.2)
    assert [two.run(rank_of_two), two.run(lambda: "third")] == [RIGHT, ["third"] * 2]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the policy is Linux's")
def test_threads_that_move_messages_wait_for_their_turn(two):
    """Must catch: groups made without `woken_threads_wait`, in `regroup` or in
    `watching_new_groups`; a policy that is not taken back from the thread that computes."""

    def threads():
        return {int(thread.name) for thread in Path("/proc/self/task").iterdir()}

    def policies(known=None):
        import torch.distributed as dist

        before = known[dist.get_rank()] if known else threads()
        if not known:
            dist.new_group([0, 1])
        movers = threads() - before - {thread.native_id for thread in threading.enumerate()}
        assert movers
        found = set()
        for mover in movers:
            with suppress(ProcessLookupError):
                found.add(os.sched_getscheduler(mover))
        return found, os.sched_getscheduler(0)

    expected = [({os.SCHED_BATCH}, os.SCHED_OTHER)] * 2
    assert two.run(policies) == expected
    known = two.run(threads)
    with pytest.raises(RankError):
        two.run(lambda: 1 / 0)
    assert two.run(policies, known) == expected


def test_two_threads_take_turns(two):
    """Must catch: no lock around a piece of work: answers go to the thread that reads first."""
    found = []

    def ask(k):
        found.extend(two.run(lambda: k) == [k, k] for _ in range(20))

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 40


@pytest.fixture
def ends():
    """The parent's end of a connection, and the socket of the other one."""
    ours, theirs = socket.socketpair()
    end = ParentsEnd(ours)
    yield end, theirs
    theirs.close()
    end.close()


def test_a_message_in_pieces(ends):
    """Must catch: half a message taken for a whole one; one of earlier work taken for an answer."""
    end, theirs = ends
    frame = packed(7, b"y" * 1000)
    theirs.sendall(frame[:500])
    assert end.read() == [] and not end.closed
    theirs.sendall(frame[500:] + packed(8, "next"))
    assert end.read() == [(7, b"y" * 1000), (8, "next")]
    end.send(packed(9, b"z" * 10**7))
    assert end.waiting  # more than the socket takes
    reader = RanksEnd(theirs)
    received = []
    thread = threading.Thread(target=lambda: received.append(reader.receive()))
    thread.start()
    while thread.is_alive():
        end.write()
    assert received == [(9, b"z" * 10**7)]
    theirs.close()
    assert end.read() == [] and end.closed


def test_messages_without_end(ends):
    """Must catch: a rank that is read as long as it sends: memory fills, and no stop is heard."""
    end, _ = ends
    end.arriving = repeat((7, "more"), 10**6)
    assert len(end.read()) < 1000 and not end.closed


class Touches:
    """Makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("make", [lambda ran: packed(7, Touches(ran)), lambda ran: b"\xff" * 16])
def test_an_answer_runs_no_code(ends, make, tmp_path):
    """Must catch: bytes that a rank has made up, and that run in the parent or take all its
    memory."""
    end, theirs = ends
    theirs.sendall(make(tmp_path / "ran"))
    assert end.read() == [] and end.closed and not list(tmp_path.iterdir())


def test_an_answer_to_earlier_work(ends):
    """Must catch: an answer taken for one to this work because it came first: the number unread; a
    second answer taken, too."""
    end, theirs = ends
    watch = Watch([Member(SimpleNamespace(exitcode=None), end, None, None)], 5, None, [])
    theirs.sendall(packed(4, Returned(b"of earlier work")))
    watch.receive(0)
    assert watch.outcome.ends == [None]
    for sent in (b"of this", b"again"):
        theirs.sendall(packed(5, Returned(sent)))
        watch.receive(0)
    assert watch.outcome.ends == [Returned(b"of this")]


def test_ranks_that_close_their_files_share_the_wait_for_exit_codes(monkeypatch):
    """Must catch: each of eight ranks that go on without their files waited for by itself."""
    waits = []
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: sum(waits)))
    wire = SimpleNamespace(write=lambda: None, read=list, closed=True)
    rank = Member(SimpleNamespace(exitcode=None, join=waits.append), wire, None, None)
    watch = Watch([rank] * 8, 5, None, [])
    for number in range(8):
        watch.receive(number)
    assert waits == [watching.EXIT_SECONDS, *[0.0] * 7]


# --- what work leaves behind ----------------------------------------------------------------------


def test_a_line_without_an_end_is_shown(two, capsys):
    """Must catch: the rest of a line kept in the rank until a later cell ends it."""
    two.cell("print('half', end='')")
    assert capsys.readouterr().out == "[rank 0] half\n[rank 1] half\n"


@METHODS
def test_what_a_rank_starts_ends_with_it(method):
    """When the world is closed, and when the ranks are ended. Must catch: only the rank's own
    process ended, or only its group. (Of /proc and the group either is enough.)"""

    def start():
        import subprocess

        program = subprocess.Popen(["sleep", "300"])
        apart = subprocess.Popen(["sleep", "300"], start_new_session=True)
        shell = "setsid sleep 300 >/dev/null 2>&1 & echo $!"
        alone = int(subprocess.run(["sh", "-c", shell], capture_output=True).stdout)
        shell = "sleep 300 >/dev/null 2>&1 & echo $!"
        near = int(subprocess.run(["sh", "-c", shell], capture_output=True).stdout)
        child = os.fork()
        if child == 0:
            time.sleep(300)
        return program.pid, apart.pid, alone, near, child

    with ranks(1, device="cpu", method=method, announce=False) as world:
        [started] = world.run(start)
        assert not gone(started, seconds=0)
        if method == "forkserver":
            with pytest.raises(RanksTooSlow):  # it does not hear that it shall stop
                world.run(lambda: os.kill(os.getpid(), signal.SIGSTOP), limit_seconds=0.1)
            assert gone(started)
            [started] = world.run(start)
    assert gone(started)


KILLED = """
    import os, sys
    from ranklab.ranks import ranks

    def pids():
        import subprocess
        return os.getpid(), subprocess.Popen(["sleep", "300"]).pid

    def hold():
        import ctypes, torch.distributed as dist
        while dist.get_rank() == 0:
            pass
        ctypes.PyDLL(None).sleep(1000)

    world = ranks(2, device="cpu", method=sys.argv[1], announce=False)
    print(*(pid for two in world.run(pids) for pid in two), flush=True)
    world.run(hold)
"""


@METHODS
def test_a_killed_parent(tmp_path, method):
    """Must catch: ranks that end only when they next read a message: one computes, one never lets
    go of the interpreter; a rank that outlives its parent, or is killed without the programs it has
    started; a fork server that stays."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(KILLED))
    command = [sys.executable, str(script), method]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 4
        time.sleep(0.3)
        below = {*pids, *descendants(process.pid)}
        assert process.poll() is None
        process.kill()
    try:
        assert gone(below)
    finally:
        for pid in pids[1::2]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_stop_pressed_while_ranks_are_ended(two):
    """Must catch: work that does not count interrupts: one between two of them leaves a world that
    can neither run nor close, "process object is closed". (The end of the ranks counts them once
    more, for worlds that are closed.)"""
    stop = threading.Event()

    def press():
        while not stop.wait(0.01):
            os.kill(os.getpid(), signal.SIGINT)

    def swallow():
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass

    before = signal.signal(signal.SIGINT, lambda *_: None)  # between two pieces of work
    thread = threading.Thread(target=press)
    threading.Timer(0.3, thread.start).start()
    try:
        with pytest.raises(RanksInterrupted):
            two.run(swallow)
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert two.run(rank_of_two) == RIGHT


STOPPED_WHILE_IT_IMPORTS = """
import atexit, gc, os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(lambda: print(gc.get_freeze_count()))
class Stop:
    def find_spec(name, *_): name == "torch" and os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Stop); import ranklab.ranks.preload
print("torch" in sys.modules, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_a_stop_while_the_server_imports():
    """Must catch: a server that a notebook's stop in its first cell ends, so that the next run of
    the cell waits for all imports once more; processes of checks that no stop reaches; objects that
    are frozen at the end, which Triton of PyTorch 2.15 lists as leaked in 30 lines."""
    command = [sys.executable, "-c", STOPPED_WHILE_IT_IMPORTS]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "True True\n0\n"


def test_ranks_of_a_group_are_named_as_those_of_the_world():
    """Must catch: "rank 0" for rank 1, the first of its group: the reader looks at the wrong
    rank."""

    def said():
        import torch.distributed as dist

        from shardlab.common.agreement import agree

        found, group, me = [], dist.new_group([1, 2]), dist.get_rank()
        for facts, complaint in (([], "wrong" * (me == 2)), ([f"a {me}"], "")) if me else ():
            asked = facts, group, ValueError, "all agree", complaint
            found.append(said_by(partial(agree, *asked), ValueError))
        return found

    with ranks(3, device="cpu", announce=False) as world:
        sentences = ["rank 2: wrong", "rank 1 has a 1, rank 2 has a 2: all agree."]
        assert world.run(said) == [[], sentences, sentences]


def test_who_waits_for_others_alone_is_no_part_of_a_circle():
    """Must catch: no circle beside a rank that waits for a free one; the absent of two calls blamed
    for the first of these."""
    waiting = post(7, 1, seconds=2.0)._replace(blocking=True)
    absent = [1], [0], [3], [4]  # rank 4 waits for nobody
    waits = {rank: Unfinished(waiting, [rank], of) for rank, of in enumerate(absent)}
    assert list(closed(waits, 60.0).waits) == [0, 1]
    missed = Unfinished(post(9, 1, seconds=1.0), [0], [3, 5])
    assert root(missed, {3: waits[3]}, 2.0) == Missed(missed.post, [5], 2.0)


def test_the_first_call_of_a_channel_may_take_longer():
    """Must catch: a rank that is blamed while NCCL connects the GPUs of a group; more patience for
    every call."""
    one = board()
    for number, awaits in ((1, False), (2, True)):
        one.write(0, post(3, number, seconds=0.0))
        found = first_finding(one, [None, None], 2.0, 30.0, start_seconds=60.0)
        assert (found is not None) == awaits
        one.write(1, post(3, number))
    one = board()
    one.write(0, post(3, 1, seconds=0.0))
    assert first_finding(one, [None, None], 2.0, 63.0, start_seconds=60.0).patience_seconds == 62.0


# --- output ---------------------------------------------------------------------------------------


def test_output_is_bounded_and_given_back(two, capsys):
    """Must catch: everything printed is shown, or kept even after it was shown. (test_one_long_line
    looks at the memory meanwhile.)"""
    two.cell("for k in range(200_000):\n    print('step', k)")
    shown = capsys.readouterr().out
    assert len(shown) < 2 * 3 * 2 * KEPT_BYTES
    assert "[rank 1] step 0\n" in shown and shown.endswith("[rank 1] step 199999\n")
    assert shown.count("bytes are left out here") == 2
    assert all(not m.out.head and not m.out.tail for m in two.members)


def test_one_long_line():
    """Must catch: a line longer than what is kept, dropped whole or kept whole."""
    printed, theirs = pipe()
    thread = threading.Thread(target=os.write, args=(theirs.fileno(), b"x" * 10**7))
    thread.start()
    while thread.is_alive():
        printed.drain()
        assert len(printed.head) + len(printed.tail) <= 3 * KEPT_BYTES
    text = printed.take()
    assert text.startswith("xxx") and text.endswith("xxx") and len(text) < 2.1 * KEPT_BYTES
    printed.close()
    theirs.close()


def test_a_stream_of_another_encoding():
    """Must catch: a letter that the parent's stdout does not know ends all ranks by a
    UnicodeEncodeError."""
    import io

    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    write_escaped(stream, "[rank 0] \u00fc\n")
    stream.flush()
    assert raw.getvalue() == b"[rank 0] \\xfc\n"


# --- surroundings ---------------------------------------------------------------------------------

WORKS = """
    from ranklab.ranks import ranks

    def rank_of():
        import torch.distributed as dist
        return dist.get_rank()

    with ranks(2, device="cpu") as world:
        results = world.run(rank_of)
    assert results == [0, 1]
    open("ended_well", "w").close()
"""
HIDES = "hides the module {} that ranks import: rename it."


def run_script(folder, *, before="", prefix="", by="script.py", **environment):
    (folder / "script.py").write_text(before + textwrap.dedent(WORKS))
    done = subprocess.run(
        ["sh", "-c", f"{prefix} exec '{sys.executable}' {by}"],
        capture_output=True,
        text=True,
        timeout=600,  # against a hang alone
        cwd=folder,
        env={**os.environ, **environment},
    )
    return (folder / "ended_well").exists(), done.stderr.strip().splitlines()


def test_surroundings_in_which_ranks_work(tmp_path):
    """Must catch: AttributeError where there is no stdout; KeyError: 'RANK'; a new file for each
    thing that a rank is handed; functions sent by name: "No module named '<run_path>'"."""
    worked, said = run_script(
        tmp_path,
        before="import sys\nsys.stdout = None\n",
        prefix="ulimit -n 40;",
        by="""-c 'import runpy; runpy.run_path("script.py")'""",
        TORCHELASTIC_RUN_ID="left over",
    )
    assert worked, said


LISTED = ("queue", "cloudpickle")
NO_FOLDER = """
import os, tempfile
os.chdir(tempfile.mkdtemp())
os.rmdir("../" + os.path.basename(os.getcwd()))
"""


@pytest.mark.parametrize(
    "before, sentence",
    [
        ("torch.py", HIDES.format("torch")),
        # by day, torch: these are in the same list
        *(pytest.param(f"{name}.py", HIDES.format(name), marks=NIGHTLY) for name in LISTED),
        ("ulimit -n 20;", "More open files must be allowed"),
        ("ulimit -v 500000;", "Memory is the probable reason"),
        (
            "import tempfile\ntempfile.tempdir = '/not/there'\n",
            "There must be a folder for temporary files: set TMPDIR to one.",
        ),
        (NO_FOLDER, "The current folder was deleted: change to one that is there."),
    ],
)
def test_surroundings_in_which_they_cannot(tmp_path, before, sentence):
    """A file beside the script, a limit of the shell, or the script's first lines. Must catch: an
    exit code, "unexpected EOF" or a file that was not found, and nothing else."""
    if before.endswith(".py"):
        (tmp_path / before).write_text("x = 1\n")
        worked, said = run_script(tmp_path)
    else:
        kind = "prefix" if before.startswith("ulimit") else "before"
        worked, said = run_script(tmp_path, **{kind: before})
    # the last line may be of a process of multiprocessing, which finds no folder either
    assert not worked and any(sentence in line for line in said), said


HANGING = """
    import os, sys, time
    import torch, torch.distributed as dist
    from ranklab.ranks import ranks

    def hang():
        if dist.get_rank() == 1:
            time.sleep(1000)
        dist.barrier()

    def left_out():
        if dist.get_rank() == 1:
            time.sleep(1000)
        dist.new_group([0, 1])

    with ranks(2, device="cpu", patience_seconds=3) as world:
        world.run({})
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "work, call", [("hang", "barrier"), ("left_out", "new_group of ranks 0, 1")]
)
def test_a_hang_under_torchrun(tmp_path, work, call):
    """Must catch: only victims in the text, "Timed out waiting"; a new_group that waits for half an
    hour; a rank that waits on."""
    (tmp_path / "script.py").write_text(textwrap.dedent(HANGING).replace("{}", work))
    _, said, codes = forked(tmp_path / "script.py", ranks=2, folder=tmp_path)
    assert f"Rank 1 did not come to {call} (collective 1 of ranks 0 and 1)" in said
    assert "while rank 0 waited" in said and codes[0] == 1
    assert "Rank 1 is in " in said and "time.sleep(1000)" in said


# --- what is asked for ----------------------------------------------------------------------------

HOSTS = (Host("near", ()), Host("far", ()))


@pytest.mark.parametrize(
    "options, error, sentence",
    [
        *told("test_ranks_surroundings::test_what_is_asked_for", globals()),
        *(
            (dict(world_size=size), ValueError, "a world has 1 to 64 ranks on one machine")
            for size in (0, -1, 65, 2.0, True, "4")
        ),
    ],
)
def test_what_is_asked_for(options, error, sentence, monkeypatch):
    """Must catch: an option that is not looked at, which all ranks then choke on."""
    from ranklab.ranks import server

    monkeypatch.setattr(server, "start", lambda *_: pytest.fail("a rank was started"))
    with pytest.raises(error, match=sentence):
        ranks(**dict(world_size=2) | options)


def test_hosts_take_gloo(monkeypatch):
    """Must catch: NCCL for ranks of two hosts on a machine with enough GPUs, which goes past the
    link; hosts that nobody hears of under torchrun."""
    from ranklab.ranks import world

    monkeypatch.setattr(world, "World", lambda asked: asked.backend)
    assert ranks(2, hosts=HOSTS) == ranks(2, hosts=HOSTS, device="cuda") == "gloo"
    assert ranks(2) is None and ranks(2, backend="nccl") == "nccl"
    for name in world.OF_TORCHRUN:
        monkeypatch.setenv(name, "1")
    with pytest.raises(ValueError, match="torchrun has placed these ranks already. Leave hosts"):
        ranks(2, hosts=HOSTS)


def test_nccl_is_told_an_interface(two, monkeypatch):
    """Must catch: NCCL left to find an interface, which a container may not have; the reader's own
    choice overwritten."""

    def interface():
        return os.environ["NCCL_SOCKET_IFNAME"]

    loopback = os.environ.get("NCCL_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    assert two.run(interface) == [loopback] * 2
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    with ranks(1, device="cpu", announce=False) as world:
        assert world.run(interface) == ["eth7"]


def test_limits(two):
    """Must catch: a limit that cannot be kept, so that "rank none had not ended"."""
    for limit, error in (("1", TypeError), (1e-9, ValueError), (-1, ValueError), (True, TypeError)):
        with pytest.raises(error, match="limit_seconds = "):
            two.run(rank_of_two, limit_seconds=limit)


@pytest.mark.parametrize("make, argument", [(int, "not a number"), (sys.exit, 3)])
def test_a_result_that_cannot_be_read_here(two, make, argument):
    """Must catch: a bare error of pickle that names neither rank nor function; a result that ends
    the script."""

    class Broken:
        def __reduce__(self):
            return (make, (argument,))

    with pytest.raises(
        RankError, match="returned on rank 0 cannot be read here .(ValueError|SystemExit: 3)"
    ):
        two.run(lambda: Broken())
    assert two.run(rank_of_two) == RIGHT


def test_the_result_of_a_stranger_runs_no_code_here(two, tmp_path):
    """Must catch: a stranger's object that runs code in the parent when it is read; a result of
    numbers that does not come."""
    with pytest.raises(RankError, match="cannot be sent to the parent"):
        two.run_untrusted(lambda: Touches(tmp_path / "ran"))
    assert not list(tmp_path.iterdir())
    assert two.run_untrusted(lambda x: (x, 2.5), 1) == [[1, 2.5]] * 2


def test_a_function_may_speak_of_a_config(two):
    """Must catch: "cannot pickle 'ConfigModuleInstance' object": cloudpickle takes a model's
    `config` for torch.distributed's."""
    import torch.distributed as dist

    model = SimpleNamespace(config=3)

    def rank_and_config(model):
        return dist.get_rank(), model.config

    assert two.run(rank_and_config, model) == [(0, 3), (1, 3)]


def test_tensors_of_every_type_there_and_back(two):
    """Must catch: bytes that PyTorch saves and cannot load: "UntypedStorage has no attribute
    dtype"."""
    import torch

    names = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64", "bfloat16", "bool")
    plain = torch.arange(48, dtype=torch.uint8).view(2, 24) % 2
    sent = {name: plain.view(getattr(torch, name))[:, 1:] for name in names}
    for came in two.run(lambda tensors: tensors, sent):
        for name, tensor in sent.items():
            assert came[name].dtype == tensor.dtype and came[name].shape == tensor.shape
            assert torch.equal(
                came[name].contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8)
            )


CELL = """
import functools, traceback

def decorated(function):
    @functools.wraps(function)
    def wrapped(*args):
        return function(*args)  # wrapped
    return wrapped

def plain():
    raise ValueError  # plain

def outer(value=None):
    def nested():
        if value is None:
            raise ValueError  # nested
    return nested()

class Model:
    def method(self):
        raise ValueError  # method
    @staticmethod
    def static():
        raise ValueError  # static
    @property
    def property(self):
        raise ValueError  # property

def closure(function):
    return lambda: function()  # closure

@decorated
def under():
    raise ValueError  # under

fails = lambda: 1 / 0  # lambda
listed = lambda: [1 / k for k in range(2)]  # listed
generated = lambda: list(1 / k for k in range(2))  # generated

def told():
    try:
        plain()
    except ValueError:
        return traceback.format_exc()
"""


@pytest.fixture
def code_without_a_file(monkeypatch):
    """Code objects as cloudpickle 3.1.3 sends them, whatever version is installed."""
    reduce = cloudpickle.Pickler.dispatch_table[CodeType]
    monkeypatch.setitem(
        cloudpickle.Pickler.dispatch_table,
        CodeType,
        lambda code: reduce(code.replace(co_filename="<dynamic-code>")),
    )


@pytest.mark.parametrize("file", ["/cells/ipykernel_1/2.py", "<ipython-input-3-4>"])
def test_a_fault_names_the_line_of_a_cell(two, file, code_without_a_file, monkeypatch):
    """Must catch: "<dynamic-code>, line 2" for the line of a cell, or no text in what the rank says
    of it."""
    lines = CELL.splitlines(True)
    monkeypatch.setitem(linecache.cache, file, (len(CELL), None, lines, file))
    cell = {"__name__": "__main__"}
    exec(compile(CELL, file, "exec"), cell)
    model = cell["Model"]()
    for work, *marks in (
        (cell["plain"], "plain"),
        (cell["outer"], "return nested()", "nested"),
        (model.method, "method"),
        (model.static, "static"),
        (partial(getattr, model, "property"), "property"),
        (cell["closure"](model.method), "closure", "method"),
        (cell["under"], "wrapped", "under"),
        (cell["decorated"](cell["fails"]), "wrapped", "lambda"),
        (cell["listed"], "listed"),
        (cell["generated"], "generated", "generated"),
    ):
        with pytest.raises(RankError) as caught:
            two.run(work)
        shown = [line for line in str(caught.value).splitlines() if line.startswith("  a cell")]
        # Python 3.11 has a frame for each comprehension
        assert len(set(shown)) >= len(set(marks)), caught.value
        for mark, line in zip(marks, shown):
            number = re.match(r"  a cell, line (\d+), [^:]*: (.*)$", line)
            assert mark in number[2] and lines[int(number[1]) - 1].strip() == number[2]
    for said in two.run(cell["told"]):
        assert f'File "{file}"' in said and "raise ValueError  # plain" in said


def test_a_fault_names_the_line_of_a_script(tmp_path, code_without_a_file, two, monkeypatch):
    """Must catch: the same of a file, whose text each process reads for itself."""
    path = tmp_path / "script.py"
    path.write_text("def here():\n    raise ValueError\n")
    script = runpy.run_path(str(path), run_name="__main__")
    with pytest.raises(RankError, match=f"  {path}, line 2, here: raise ValueError\n"):
        two.run(script["here"])


def test_a_rank_that_ended_before_it_was_asked_has_a_place():
    """Must catch: no line for a rank whose call another rank, which was stopped first, has ended:
    the line that waits is in its own report."""
    post = Post(0, 1, 0.0, 0b11, CallKind.receive, "recv from 0 of float32, 1 elements")
    frames = (("ring.py", 7, "ring"),)
    ended = Raised("RuntimeError", "Connection closed by peer", frames, 0.0, True, False)
    stopped = Raised("Stopped", "", (), 0.0, False, True)
    circle = Circle({0: (post, [1]), 1: (post, [0])})
    said = str(verdict(Outcome([ended, stopped], [(), frames], circle), "after"))
    assert "  rank 0 was in ring.py, line 7, ring\n  rank 1 was in ring.py, line 7" in said


def test_a_rank_waits_where_its_collective_is():
    """Must catch: `seen` told before the rank's own report, so that a rank which was importing when
    it was asked "waited in a collective, last seen in" an import."""
    echo = Raised("RuntimeError", "closed", (("cell.py", 5, "step"),), 0.0, True, False)
    guilty = Raised("ValueError", "bad", (("cell.py", 2, "step"),), 0.0, False, False)
    seen = [(), (("library.py", 3, "<module>"),)]
    said = str(verdict(Outcome([guilty, echo], seen, guilty), "after"))
    assert "Rank 1 waited in a collective, last seen in cell.py, line 5, step" in said


@pytest.mark.skipif(sys.platform != "linux", reason="the list of a process's open files")
def test_programs_get_no_files_of_the_rank(two):
    """Must catch: a program that outlives its rank, and holds gloo's connections, the shared board
    and the pipe of multiprocessing's tracker open."""

    def opened():
        import torch.distributed as dist

        dist.new_group([0, 1])
        listing = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, close_fds=False)
        return listing.stdout.split()

    assert two.run(opened) == [[b"0", b"1", b"2", b"3"]] * 2  # 3: the folder that ls reads


def test_a_rank_killed_between_two_cells(two):
    """Must catch: a world that is told nothing of it, and waits."""
    os.kill(two.members[0].process.pid, signal.SIGKILL)
    with pytest.raises(RankDied, match="Rank 0 died: it was killed by SIGKILL"):
        two.run(rank_of_two)
    assert two.run(rank_of_two) == RIGHT


# --- the board ------------------------------------------------------------------------------------


def board(world_size=2) -> Board:
    return Board(SharedFile(Board.nbytes(world_size)), world_size)


def post(channel, number, what="x", seconds=1.0, history=0) -> Post:
    return Post(channel, number, seconds, 3, CallKind.collective, what, history=history)


def test_channels_never_share_a_row():
    """Must catch: a row chosen by the key modulo the number of rows: of two channels with one row
    neither is ever accused, as both directions of a pair were not."""
    one = board()
    keys = [7 + 64 * k for k in range(20)]
    for seconds, key in enumerate(keys):
        one.write(0, post(key, 1, seconds=seconds))
    assert [(call.post.channel, call.absent) for call in unfinished(one)].count((7, [1])) == 1
    assert sorted(call.post.channel for call in unfinished(one)) == keys


def test_more_channels_than_rows():
    """Must catch: a channel that lost its row taken for one in which a rank is missed."""
    one = board()
    for key in range(1, 100):
        one.write(0, post(key, 1, seconds=key))
        if key > 80:
            one.write(1, post(key, 1, seconds=key))
    assert one.has_lost_rows(0) and one.post(0, 1, 1) is None and one.post(0, 99, 1) is not None
    for key in (1, 99):  # an old one comes again, and one that has a row goes on
        one.write(0, post(key, 2, seconds=200))
    assert one.post(0, 1, 2).number == 2 and one.post(0, 99, 1).number == 1


WRITES = """
import sys
from ranklab.ranks.board import Board, CallKind, Post
from ranklab.ranks.place import SharedFile
one, number = Board(SharedFile(path=sys.argv[1]), 2), 1
while True:
    one.write(0, Post(3, number, float(number), 3, CallKind.collective, "x"))
    number += 1
    if number == 100:
        print(flush=True)
"""


def test_a_row_is_never_empty_while_it_is_written():
    """Must catch: a row that is emptied before it gets its next values, which one look in a hundred
    to a thousand saw: a right run ends, and a rank is blamed."""
    file = SharedFile(Board.nbytes(2))
    one = Board(file, 2)
    command = [sys.executable, "-c", WRITES, f"/proc/{os.getpid()}/fd/{file.fd}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            writer.stdout.readline()
            seen = []
            while len(seen) < 5000 or max(row.count for row in seen[-9:] if row) < 5000:
                seen.append(one.rows_of(0).get(3))
        finally:
            writer.kill()
    counts = [row.count for row in seen if row is not None]
    assert len(counts) == len(seen) and counts == sorted(counts)


def test_a_cleared_board_is_empty():
    """Must catch: a post of before the clearing taken for one of after it."""
    one = board()
    for number in range(1, 5):
        one.write(0, post(3, number, "old"))
    one.clear()
    one.write(0, post(3, 1, "new"))
    assert one.post(0, 3, 1).what == "new" and one.post(0, 3, 2) is None
    assert one.same_call(0, post(3, 2, "new"), 0) is None


def test_a_difference_of_long_ago():
    """Must catch: posts that were overwritten forgotten: ranks that differed more than 512 calls
    ago agree; a digest of the last post alone."""
    histories = []
    for first in ("one", "another", "one"):
        checks = Checks(board(), rank=0)
        for what in (first, "the same", "the same"):
            last = checks.counted(3, 0b11, what, blocking=True)
        histories.append(last.history)
    assert histories[0] == histories[2] != histories[1]
    one = board()
    for number in range(1, 1001):
        for rank in range(2):
            one.write(rank, post(3, number, "x", number, history=(rank if number > 5 else 0)))
    assert set(disagreement(one)) == {0, 1}


def test_long_descriptions_differ_where_they_differ():
    """Must catch: texts cut before they are compared: 26 dimensions are a false alarm, or the end
    of a long one is not looked at."""
    ones = [f"float32 {[1] * 26}" + "y" * 200 + end for end in ("a", "b")]
    assert shortened(ones[0]) != shortened(ones[1]) and len(shortened(ones[0])) <= 160
    assert shortened("short") == "short"
