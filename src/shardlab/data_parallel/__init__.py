"""Data parallelism: a copy of the model on each rank, a part of the batch each, one mean gradient.

    core.py      the idea on a page: buckets that leave while backward still runs
    buckets.py   what a bucket sends, and what GPUs need not copy
    ladder.py    four steps from a central server to it, for any model; refuses what it cannot do

The names of ladder.py are the package's. Its last step is a subclass of the core.
"""

from .ladder import (
    BUCKET_BYTES,
    Bucketed,
    CannotReplicate,
    DistributedDataParallel,
    FlatBucket,
    ParameterServer,
    PerTensor,
    Replicas,
    make_buckets,
)
