"""Several ranks in one notebook, test or script, on whatever this machine has.

    from ranklab.ranks import ranks

    def mean_of_ranks():
        x = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(x, dist.ReduceOp.AVG)
        return x.item()

    with ranks(4) as world:
        world.run(mean_of_ranks)          # [1.5, 1.5, 1.5, 1.5]: one result a rank, in rank order

In a notebook, `%load_ext ranklab.ranks` adds `%%ranks 4`: the cell runs on four ranks, which keep
its variables for the next. When something fails, the error names the rank that failed first and not
the ranks that waited for it: see faults.py.

    launching    world.py     ranks(...), and the parent of the ranks: sends work, gathers results,
                              mends faults; asked.py checks what it is given
                 server.py    starts processes: a fork server that never touches CUDA, or spawn
                              where there is none; preload.py is what they import
                 worker.py    one rank; messages.py is what it is told and what it answers,
                              place.py its device, and the files it shares
                 wire.py      the socket between them
                 output.py    what a rank prints, at both ends
                 staging.py   send and recv of CUDA tensors by gloo, through the host
                 devices.py   which GPU, which backend, and the process group
                 scheduling.py threads that move messages do not interrupt those that compute
                 torchrun.py  the same where torchrun is the parent
                 magic.py     %%ranks
    faults       calls.py     every collective of a process, seen where PyTorch hands it to the
                              backend
                 board.py     which rank is in which collective, in memory that all of them see
                 checks.py    ranks that disagree about a collective, found before it runs
                 findings.py  what the board tells: who has not come, who waits for whom
                 watch.py     waiting for ranks, and noticing when one will not come
                 stopping.py  how a rank is made to leave what it is doing
                 reports.py   what a rank tells of its error
                 faults.py    which rank is guilty
    links        links.py     rehearsed hosts: a slow link between ranks of one machine

`import ranklab.ranks` loads no torch: the ranks do, and the fork server does it once for all of
them.
"""

from .faults import (
    RankAbsent,
    RankDied,
    RankError,
    RankFlooded,
    RankRaised,
    RanksDeadlocked,
    RanksDisagree,
    RanksInterrupted,
    RanksTooSlow,
)
from .place import NotARank, rank_device
from .world import ranks


def load_ipython_extension(shell):
    from .magic import RanksMagic
    from .server import start_fork_server

    start_fork_server()  # the server imports torch while the reader reads on
    shell.register_magics(RanksMagic(shell))
