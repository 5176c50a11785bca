"""Measurements of mixed precision for `make gpu`, the recordings for its page, and the races of
`make bench`."""

from coursekit.topics.mixed_precision.gradients import GRADIENT_RUN
from coursekit.topics.mixed_precision.policy_runs import POLICY_BENCHES, POLICY_RUNS

RUNS = (GRADIENT_RUN, *POLICY_RUNS)
BENCHES = POLICY_BENCHES
