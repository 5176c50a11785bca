"""Random models beside the plain one, more of them than the tests draw: see tests/random_models.py.

A seed that comes out wrong is printed with its case; put it into the tests when it is mended.
"""

import sys
from collections import Counter
from pathlib import Path

from coursekit.recordings.races import Result

SEEDS, TOGETHER = 5_000, 50


def measure_random_models() -> list[Result]:
    import cloudpickle

    from ranklab.ranks import ranks

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import random_models

    cloudpickle.register_pickle_by_value(random_models)
    found = {}
    for count in (2, 3, 4):
        cases = [case for case in map(random_models.case_of, range(SEEDS)) if case.ranks == count]
        with ranks(count, device="cpu", announce=False) as world:
            for first in range(0, len(cases), TOGETHER):
                found |= random_models.outcomes(world, cases[first : first + TOGETHER])
    wrong = {
        seed: said for seed, said in found.items() if not said.startswith(("parity", "refused"))
    }
    for seed, said in wrong.items():
        print(f"bench:  seed {seed}: {said}  {random_models.case_of(seed)}")
    kinds = Counter(said.split(":")[0] for said in found.values())
    note = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    what = f"{SEEDS:,} random models beside the plain one: neither parity nor refused"
    return [Result("random models", what, len(wrong), "models", 0, note)]
