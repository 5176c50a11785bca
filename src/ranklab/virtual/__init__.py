"""GPUs that a laptop does not have, in virtual time: the real code of a rank on tensors without
contents, and a clock for every stream.

    with VirtualGPUs(8, h100) as gpu:
        ...                                 # build and warm up
        with gpu.step() as step:
            train()
    print(step)

hardware.py     the numbers of a GPU and its links
operators.py    bytes and operations of an operator
clock.py        host, streams, spans
streams.py      streams and events, under torch's names
messages.py     when a message starts and ends
memory.py       live bytes, a GPU that runs out of memory, copies to the host's and back
loading.py      a loader beside the GPU
gpu.py          all of it around a program
report.py       the table and the trace
"""

from .gpu import VirtualGPU, VirtualGPUs
from .hardware import GPU, Links, NoContents, UnknownSpeed
from .loading import virtual_batches
from .memory import OutOfMemory
from .report import VirtualStep
