"""Sources of the numbers of lab 2 on machines that have GPUs."""

from coursekit.exercises.elsewhere import Elsewhere
from coursekit.planner.links import link_rates

ELSEWHERE = {
    "large fp32 product, GFLOP/s": Elsewhere(
        row="matmul.rate", case={"dtype": "float32"}, number=lambda rate: rate / 1e9
    ),
    "memory, GB/s": Elsewhere(row="roofline.memory", number=lambda rate: rate / 1e9),
    "16 rows, times as long as 1": Elsewhere(
        said="the room's own: near 1 where products are fast beside memory, as on a GPU"
    ),
    "smallest operation, microseconds": Elsewhere(
        row="roofline.launch", number=lambda seconds: seconds * 1e6
    ),
    "small message, microseconds": Elsewhere(),
    "link, GB/s": Elsewhere(virtual=lambda: link_rates("H100 SXM 80GB")[0] / 1e9),
}
