"""Data parallelism: a copy of the model on each rank, a part of the batch each, one mean gradient.

    core.py      the idea on a page: buckets that leave while backward still runs
    buckets.py   what a bucket sends, and what GPUs need not copy
    replicas.py  the core for any module; refuses what it cannot do

The steps that lead to it, from a central server on, are in coursekit/topics/data_parallelism.
"""

from .replicas import (
    BUCKET_BYTES,
    CannotReplicate,
    DistributedDataParallel,
    FlatBucket,
    Replicas,
    make_buckets,
)
