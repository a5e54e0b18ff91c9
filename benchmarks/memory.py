"""Peak memory of one case: the highest resident set of a fresh process, less what it held before.

`python -m benchmarks.memory allconv "ours exact" 500 125` prints the number of bytes. Linux keeps the peak of a process in
`/proc/self/status` and lets it be reset, unlike that of `getrusage`, which a child inherits from its parent. The threshold
above which the allocator maps memory on its own is fixed, so that what was freed goes back and the peak is that of live data.
"""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.networks import NETWORKS


def peak_memory(network: str, case: str, size: int, batch_size: int) -> int | None:
    """Bytes that a case needs beyond network, data and libraries; None where the system does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", network, case, str(size), str(batch_size)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "OMP_NUM_THREADS": "1"}
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def _resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _measure(network: str, case: str, size: int, batch_size: int) -> int:
    from benchmarks.curvature import Workload

    # A small run first, so that code and tables loaded on first use do not count.
    Workload(NETWORKS[network], 4, 4).cases(peer=True)[case]()
    run = Workload(NETWORKS[network], size, batch_size).cases(peer=True)[case]
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    kept = run()
    peak = _resident("VmHWM") - before
    del kept
    return peak


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    name, of, *sizes = sys.argv[1:]
    print(_measure(name, of, *map(int, sizes)))
