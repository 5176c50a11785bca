"""Wrong numbers that readers of lab 5 lock, and what they come from: four ranks, 28 parameter
tensors, 224,256 bytes in float64."""

from coursekit.exercises.slips import Slip, Slips


def _each(sentence: str, *numbers: float) -> tuple[Slip, ...]:
    """One cause of several numbers."""
    return tuple(Slip(sentence, number=number) for number in numbers)


PREDICTIONS = {
    "tensors alike after one step alone": Slips(
        (
            Slip(
                "The copies start alike, but each has stepped by gradients of its own.", number=28
            ),
            *_each(
                "Every tensor takes part in every loss, biases and norms as well: each rank has"
                " another gradient of it.",
                *range(1, 28),
            ),
        ),
        general=False,
    ),
    "server: messages that rank 0 sends": Slips(
        (
            Slip("That is one copy: the server sends each tensor to three others.", number=28),
            Slip("The server has its own copy: it sends to three others, not to four.", number=112),
            Slip("That is sent and received; what rank 0 sends is half of it.", number=168),
            *_each("The model goes tensor by tensor: 28 messages to each of three.", 1, 3, 4),
            Slip("One for two of them: three others want each tensor.", number=56),
        ),
        ranks=4,
    ),
    "for each tensor: messages": Slips(
        (
            *_each(
                "An all-reduce is one call on each rank, however many others take part.",
                *(84, 112),
            ),
            Slip("An all-reduce sums and hands out in one call.", number=56),
            Slip("A ring sends six times for a rank: the log counts calls of it.", number=168),
            Slip("One message for the model: here each tensor has its own.", number=1),
        ),
        ranks=4,
    ),
    "buckets: messages": Slips(
        (
            Slip("No tensor is cut, so buckets hold more than 50,000 bytes.", number=5),
            Slip("What fills no bucket in the end is a bucket, too.", number=3),
            Slip("Each tensor is smaller than a bucket: several share one.", number=28),
            *_each("An all-reduce is one call on each rank, whoever takes part.", 12, 15, 16, 20),
            Slip("One bucket for everything: each closes at 50,000 bytes.", number=1),
        ),
        ranks=4,
    ),
    "left before the last gradient": Slips(
        (
            Slip("The last bucket waits for the last gradient, and leaves after it.", number=4),
            Slip("That is without overlap: a full bucket leaves in the middle.", number=0),
            *_each("All but the last bucket are full before the last gradient.", 1, 2),
            *_each("There are four buckets: they hold all 28 tensors.", 27, 28),
        ),
        within=0,
    ),
    "waiting that overlap saves, percent": Slips(
        (
            Slip("The last bucket leaves after the last gradient: nothing hides it.", number=100),
            Slip("The link works while backward computes: that is hidden.", number=0),
        ),
        within=3,
    ),
    "optimizer states on each rank, bytes": Slips(
        (
            Slip("Nothing is shared out: each rank keeps all of Adam's states.", times=1 / 4),
            Slip("Adam keeps two moments of each parameter, not one.", number=224_256),
            Slip("Gradients are no optimizer states: two moments alone.", number=672_768),
            Slip("Those are all four ranks, and one is asked for.", times=4),
            Slip("Counters alone, or elements: a moment has 8 bytes an element.", times=1 / 8),
        ),
        ranks=4,
    ),
}
