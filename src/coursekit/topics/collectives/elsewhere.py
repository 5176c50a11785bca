"""Sources of the numbers of lab 4 on machines that have GPUs."""

from coursekit.exercises.elsewhere import LINK_SET, Elsewhere

ELSEWHERE = {
    "latency, microseconds": Elsewhere(said="the room's own: these messages stay on the CPU"),
    "bandwidth, GB/s": Elsewhere(said="the room's own: these messages stay on the CPU"),
    "ring over the slow link, ms": Elsewhere(said=LINK_SET),
    "tree over the slow link, ms": Elsewhere(said=LINK_SET),
}
