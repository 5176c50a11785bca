"""Write the value of every formula for a few dozen configurations, to compare with after formulas
change.

    git worktree add ../before 7ab9e30
    PYTHONPATH=../before/src python tests/engines/record_formula_values.py 7ab9e30

A value that is refused is stored as the sentence that refuses it.
"""

import json
import sys
from pathlib import Path
from random import Random

from coursekit.formulas import BOOK, PRESETS, InvalidQuantity, evaluate, quantities

STORED = Path(__file__).with_name("formula_values.json")
PEAKS = range(1, 7)  # for each point of the step, shapes whose peak is there


def shape(draw):
    """A small model, as a test would train it: any switch, any sharing of heads."""
    heads = draw.choice([1, 2, 4, 6])
    return dict(
        layers=draw.choice([1, 2, 3, 5]),
        hidden=heads * draw.choice([4, 8, 16]),
        heads=heads,
        key_value_heads=draw.choice([n for n in (1, 2, 3, heads) if heads % n == 0]),
        feed_forward=draw.choice([8, 48, 100, 256]),
        vocabulary=draw.choice([11, 97, 512, 2000]),
        max_sequence=draw.choice([16, 64, 256]),
        learned_positions=draw.randrange(2),
        biases=draw.randrange(2),
        gated_mlp=draw.randrange(2),
        tied_head=draw.randrange(2),
    )


def configuration(draw, model):
    """All that the formulas need: presets, and what no preset gives."""
    presets = {kind: draw.choice(list(PRESETS[kind])) for kind in PRESETS if kind != "model"}
    tensor_parallel, pipeline_parallel = draw.choice([1, 2, 8]), draw.choice([1, 4])
    data_parallel = draw.choice([1, 3, 16, 60])
    nodes, ranks_per_node = draw.choice([1, 2, 12]), draw.choice([1, 4, 8])
    rank = draw.randrange(min(data_parallel, nodes * ranks_per_node))
    small = isinstance(model, dict)
    return quantities(
        **presets,
        **(model if small else quantities(model=model)),
        sequence=draw.choice([3, 16, 40]) if small else draw.choice([512, 2048]),
        microbatch=draw.choice([1, 2, 5]),
        accumulation_steps=draw.choice([1, 4]),
        fused_attention=draw.randrange(2),
        dropout=draw.choice([0, 0.1]),
        first_step=draw.randrange(2),
        optimizer_mode=draw.randrange(3),
        gpus=data_parallel * tensor_parallel * pipeline_parallel,
        data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        utilisation=draw.choice([0.3, 0.5]),
        tokens=draw.choice([10**9, 300 * 10**9]),
        ranks=nodes * ranks_per_node,
        ranks_per_node=ranks_per_node,
        rank=rank,
        forward_seconds=draw.choice([0.001, 0.08]),
        backward_seconds=draw.choice([0.002, 0.15]),
        update_seconds=0.01,
        message_elements=draw.choice([0, 1001, 10**8]),
        message_element_bytes=draw.choice([2, 4]),
        collective_seconds=draw.choice([0.0001, 0.02]),
        bucket_bytes=draw.choice([2**16, 25 * 2**20]),
        measured_flops_per_second=draw.choice([1e12, 4e14]),
        multiprocessors=draw.choice([108, 132]),
        multiprocessor_flops_per_cycle=draw.choice([2048, 4096]),
        cycles_per_second=draw.choice([1.41e9, 1.83e9]),
        launch_seconds=draw.choice([0, 8e-6]),
        operation_element_bytes=draw.choice([2, 4]),
        storage_bytes_per_second=draw.choice([2e9, 1e11]),
        failure_seconds=draw.choice([3600, 1e6]),
        zero_stage=draw.randrange(4),
        zero_flat_tensors=draw.choice([1, 32]),
        zero_unit_parameters=draw.choice([1000, 200_000_000]),
        zero_root_parameters=draw.choice([0, 70_000]),
    )


def configurations():
    """Each preset model twice, and small ones until each point has been the peak three times."""
    draw = Random(13)
    found = [configuration(draw, model) for model in PRESETS["model"] for _ in range(2)]
    missing = [point for point in PEAKS for _ in range(3)]
    while missing:
        given = configuration(draw, shape(draw))
        point = value("peak_point", given)
        if point in missing:
            missing.remove(point)
            found.append(given)
    return found


def value(name, given):
    """The formula's value, or the sentence with which it is refused."""
    try:
        return evaluate([name], allow_unused=True, **given)[name]
    except InvalidQuantity as refused:
        return str(refused)


def main(commit):
    given = configurations()
    stored = dict(
        commit=commit,
        given={name: [one[name] for one in given] for name in given[0]},
        values={name: [value(name, one) for one in given] for name in BOOK.formulas},
    )
    lines = [f'"commit": {json.dumps(commit)}']
    for part in ("given", "values"):
        rows = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in stored[part].items())
        lines.append(f'"{part}": {{\n' + ",\n".join(rows) + "\n}")
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
