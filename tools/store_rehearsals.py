"""Rehearse the scripts of lab 21, and store the answers for a PyTorch that cannot rehearse:
``python tools/store_rehearsals.py``."""

import json

from coursekit.topics.slow_to_fast.rehearsed import RECORDED, example_text, rehearsed_all

SCRIPT = example_text("train_gpt2.py")
FORGOT = SCRIPT.replace("microbatch == ACCUMULATE - 1", "True")
ASKED = {
    "one node": [SCRIPT],
    "eight nodes": [SCRIPT, "--nodes", "8"],
    "each backward sends": [FORGOT, "--nodes", "8"],
}

KEPT = ("seconds", "parts", "host_waits", "peak_bytes")  # of an answer: what the lab shows

if __name__ == "__main__":
    found = rehearsed_all(ASKED)
    kept = {name: {key: one[key] for key in KEPT} for name, one in found.items()}
    RECORDED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
