"""What `make gpu` measures of mixed precision, what is recorded for its page, and what `make bench`
races."""

from coursekit.topics.mixed_precision.gradients import GRADIENT_RUN
from coursekit.topics.mixed_precision.policy_runs import POLICY_BENCHES, POLICY_RUNS

RUNS = (GRADIENT_RUN, *POLICY_RUNS)
BENCHES = POLICY_BENCHES
