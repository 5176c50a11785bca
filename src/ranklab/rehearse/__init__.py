"""A rehearsal of a training script on GPUs that are not there: the unchanged script runs as one
rank of so many, on tensors without contents, for three steps.

gpu.py       the GPU that the script sees
stand_in.py  C++ and Python of PyTorch that take it for CUDA's
cuda.py      torch.cuda, torch.distributed and loaders as the script finds them
writes.py    the files that the script writes
script.py    the script, its steps, and where they end
"""

from .gpu import CannotRehearse
from .script import Rehearsal, rehearse
