"""Rehearse the scripts of lab 21, and store the answers for a PyTorch that cannot rehearse:
``python tools/store_rehearsals.py``."""

import json

from coursekit.lab.rehearsed import RECORDED, example_text, rehearsed_all

SCRIPT = example_text("train_gpt2.py")
FORGOT = SCRIPT.replace("microbatch == ACCUMULATE - 1", "True")
ASKED = {
    "one node": [SCRIPT],
    "eight nodes": [SCRIPT, "--nodes", "8"],
    "each backward sends": [FORGOT, "--nodes", "8"],
}

if __name__ == "__main__":
    RECORDED.write_text(json.dumps(rehearsed_all(ASKED), indent=1) + "\n", encoding="utf-8")
