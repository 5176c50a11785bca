"""The ranks of a lab, on whatever this machine has."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from weakref import WeakValueDictionary

from ranklab.ranks import ranks
from ranklab.ranks.links import Host, LinksUnavailable, two_hosts

from ..machine.capabilities import capabilities, find_device, in_a_sentence

_started: WeakValueDictionary[str, object] = WeakValueDictionary()


def ranks_on(n: int, *, needs_gpu: Sequence[str] = (), **options):
    """Start n ranks: a GPU and NCCL for each where there are enough, several ranks on a GPU where
    there are fewer, the CPU where no GPU multiplies. Shows a sentence that says which, and why.

    `needs_gpu` names what the lab skips on a CPU; `options` are those of ranklab.ranks.ranks.
    Ranks that the same call has started before are ended, so a cell may run twice. In a notebook
    `%%ranks` runs a cell on them.
    """
    call = f"{n} {sorted(options.items())}"
    if (before := _started.pop(call, None)) is not None:
        before.close()
    device, why_not = find_device()
    on_cpu = options.get("device") == "cpu"
    world = _started[call] = ranks(n, announce=False, **{"device": device.type, **options})
    said = capabilities(device, why_not, needs_gpu, n, on_cpu, world.backend)
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        from IPython.display import display

        display(in_a_sentence(said))
        _magic(shell).use(world)
    elif getattr(world, "rank", 0) == 0:  # under torchrun this process is one rank of several
        print(said)
    return world


@contextmanager
def link_between_hosts(megabits_per_second: float) -> Iterator[tuple[tuple[Host, ...], str]]:
    """Two rehearsed hosts, and the link between them in words; no hosts where this system cannot
    rehearse a slow link, and a line that says so."""
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(two_hosts(megabits_per_second))
            words = f"{megabits_per_second / 1000:g} Gbit/s"
        except LinksUnavailable:
            print("no slow link can be rehearsed here")
            hosts, words = (), "one host"
        yield hosts, words


def _magic(shell):
    """The notebook's `%%ranks`, as `%load_ext ranklab.ranks` makes it."""
    if "RanksMagic" not in shell.magics_manager.registry:
        shell.extension_manager.load_extension("ranklab.ranks")
    return shell.magics_manager.registry["RanksMagic"]
