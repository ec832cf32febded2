"""Times Python's render of the conversation that BenchmarkRender50 renders.

speed.py [TEMPLATE...]: median microseconds of 300 renders each, compiled once.
"""

import json
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "interop"))

import reference  # noqa: E402

variables = json.loads((HERE / "chat" / "cases.json").read_text())["fifty"]
for path in sys.argv[1:] or [HERE / "chat" / f"{n}.jinja" for n in ("chatml", "headers", "alternate", "turns", "channels")]:
    template = reference.environment().from_string(pathlib.Path(path).read_text())
    times = []
    for _ in range(300):
        start = time.perf_counter_ns()
        template.render(**variables)
        times.append(time.perf_counter_ns() - start)
    print(f"{pathlib.Path(path).stem} {statistics.median(times) / 1000:.0f} us")
