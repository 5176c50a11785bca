"""A rehearsal on H100s of 96 GB, whose memory moves 2.4 TB/s: python on_96_gb.py GPUS SCRIPT
[ARGUMENT ...] prints it as JSON."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from coursekit.formulas import quantities
from coursekit.lab.virtual import recorded_gpu
from ranklab.rehearse import rehearse

GPU = "H100 SXM 80GB"
CARD_BYTES, MEMORY_RATE = 102_048_433_766, 2.4e12


def main(ranks: int, script: str, *arguments: str):
    usual, share = recorded_gpu(GPU), MEMORY_RATE / quantities(gpu=GPU)["memory_bytes_per_second"]
    card = replace(
        usual,
        memory_bytes_per_second=share * usual.memory_bytes_per_second,
        memory_bytes=usual.memory_bytes + CARD_BYTES - quantities(gpu=GPU)["gpu_memory_bytes"],
    )
    with TemporaryDirectory() as folder:
        given = list(arguments), card, CARD_BYTES, Path(folder)
        found = rehearse(Path(script), *given, ranks=ranks, seconds=600)
        print(json.dumps(found.as_json(), indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
