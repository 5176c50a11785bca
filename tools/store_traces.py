"""Make the traces that the book draws, and store them: ``python tools/store_traces.py [NAME ...]``.
Those in virtual time get the same bytes on every machine."""

import os
import sys

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read once, when torch is imported

if __name__ == "__main__":
    from coursekit.topics.where_the_time_goes.traces import FOLDER, TRACES

    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or TRACES:
        text = TRACES[name]().as_json()
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {len(text):,} bytes")
