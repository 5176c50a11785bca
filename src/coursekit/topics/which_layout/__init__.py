"""Which layout? Seconds of a step for any degrees of data, tensor and pipeline parallelism."""
