"""Chapter 12: feeding the GPU."""

import copy
import random

from coursekit.exercises.edits import Topic
from coursekit.topics.feeding_the_gpu.text_to_shards import documents_of
from shardlab.data_loading.core_packing import best_fit_crop, greedy_crop
from shardlab.text import load_text

topic = Topic(__name__)


# --- bytes of a file ------------------------------------------------------------------------------


def file_bytes(tokens, vocabulary):
    return tokens * (2 if vocabulary <= 65_536 else 4)


bytes_of_a_file = topic.exercise(
    "bytes_of_a_file",
    file_bytes,
    cases=(
        dict(tokens=1_000, vocabulary=50_257),
        dict(tokens=1_000, vocabulary=65_536),
        dict(tokens=1_000, vocabulary=1_000),
        dict(tokens=700, vocabulary=128_256),
    ),
    words=("GPT-2's vocabulary", "the largest of two bytes", "a small one", "Llama 3's vocabulary"),
    hint="What is the largest number that a token of this vocabulary has?",
    right="two bytes up to a vocabulary of 65,536, whose largest number is 65,535; four above.",
)


# --- the places of a rank -------------------------------------------------------------------------


def places(step, rank, ranks, batch):
    return [step * batch + at for at in range(batch * rank // ranks, batch * (rank + 1) // ranks)]


places_of_a_rank = topic.exercise(
    "places_of_a_rank",
    places,
    cases=(
        dict(step=0, rank=1, ranks=2, batch=4),
        dict(step=5, rank=2, ranks=4, batch=8),
        dict(step=1, rank=0, ranks=3, batch=8),
        dict(step=1, rank=2, ranks=3, batch=8),
    ),
    words=("the first step", "step 5 of four ranks", "8 for three ranks, rank 0", "rank 2"),
    hint="Where does the step begin, for all ranks? And where in it the rank's part, and the next?",
    right="a part ends where the next one begins: no place is lost or twice on any ranks.",
)


# --- a late batch ---------------------------------------------------------------------------------


def wait_us(late, workers, ahead, step):
    return max(0, late - workers * ahead * step)


wait_for_a_batch = topic.exercise(
    "wait_for_a_batch",
    wait_us,
    cases=(
        dict(late=200_000, workers=4, ahead=2, step=20_000),
        dict(late=100_000, workers=4, ahead=2, step=20_000),
        dict(late=90_000, workers=1, ahead=2, step=10_000),
    ),
    words=("longer than the buffer", "shorter than the buffer", "one worker"),
    hint="How many steps can the GPU run before it misses the late batch?",
    right="the buffer carries over a step for each batch, and a GPU never waits less than nothing.",
)


# --- positions ------------------------------------------------------------------------------------


def positions(row):
    found = []
    for at, document in enumerate(row):
        goes_on = at > 0 and row[at - 1] == document
        found.append(found[-1] + 1 if goes_on else 0)
    return found


positions_in_documents = topic.exercise(
    "positions_in_documents",
    positions,
    cases=(
        dict(row=[3, 3, 3, 5, 5]),
        dict(row=[0, 1, 1, 1, 1, 2]),
        dict(row=[4, 4, 4]),
    ),
    words=("two documents", "three, one of a single token", "one document"),
    hint="When does counting begin anew? Compare a token's document with that of the one before.",
    right="each document begins at 0, as it would alone.",
)


# --- tokens thrown away ---------------------------------------------------------------------------


def thrown_away():
    lengths = [len(document) for document in documents_of(load_text())]
    kept = [
        sum(tokens for row in packer(lengths, 512) for _, tokens in row)
        for packer in (greedy_crop, best_fit_crop)
    ]
    return [sum(lengths) - tokens for tokens in kept]


tokens_thrown_away = topic.exercise(
    "tokens_thrown_away",
    thrown_away,
    name="thrown",
    cases=({},),
    of_a_value=True,
    hint="The tokens of all documents, without those that are in a row.",
    right="as they come, 34,564 of 146,729 tokens are cut off; by best fit 10,025.",
)


# --- the wall -------------------------------------------------------------------------------------


def may_see(row):
    places = range(len(row))
    return [[at >= other and row[at] == row[other] for other in places] for at in places]


wall_between_documents = topic.exercise(
    "wall_between_documents",
    may_see,
    cases=(
        dict(row=[3, 3, 5]),
        dict(row=[0, 1, 1, 2]),
        dict(row=[7, 7]),
        dict(row=[5, 3, 3]),
        dict(row=[4, 4, 4, 9]),
    ),
    words=("two documents", "three documents", "one document", "numbers that fall", "a longer one"),
    hint="Two conditions: no token sees a later one, and none sees another document.",
    right="of its own document, and not later.",
)


# --- bug hunt: the same noise ---------------------------------------------------------------------


def _drawn(solution, seed, workers, samples=12, epochs=12):
    """The noise of each sample in each epoch: a copy of the data set for each worker, in each
    epoch, and another seed for the generator that all share, as a DataLoader does."""
    whole, found, before = solution(seed), {}, random.getstate()
    for epoch in range(epochs):
        for worker in range(workers):
            own = copy.deepcopy(whole)
            random.seed(f"{epoch} {worker} of {workers}")
            for index in range(worker, samples, workers):
                found[epoch, index] = round(own.sample(epoch, index) - index, 9)
    random.setstate(before)
    return dict(sorted(found.items()))


def _of_the_noise(solution, seed):
    """Whether samples differ, epochs differ, workers make no difference, seeds do, noise is in its
    range, no two of all are alike."""
    by_workers = {workers: _drawn(solution, seed, workers) for workers in (1, 2, 3)}
    drawn = by_workers[3]
    first = [noise for (epoch, _), noise in drawn.items() if epoch == 0]
    return (
        len(set(first)) == len(first),
        all(drawn[0, index] != drawn[1, index] for index in range(len(first))),
        len({tuple(each.values()) for each in by_workers.values()}) == 1,
        drawn != _drawn(solution, seed + 1, 3),
        all(0 <= noise < 1 for noise in drawn.values()),
        len(set(drawn.values())) == len(drawn),
    )


class Noisy:
    def __init__(self, seed):
        self.seed = seed

    def sample(self, epoch, index):
        return index + random.Random(f"{self.seed} {epoch} {index}").random()


same_noise = topic.exercise(
    "same_noise",
    Noisy,
    cases=(dict(seed=0), dict(seed=7)),
    words=("seed 0", "seed 7"),
    answer=_of_the_noise,
    hint="What does a copy of a generator draw? Let the noise follow from seed, epoch and index.",
    right="noise is a function of seed, epoch and index: no copy of a generator, no state.",
)
