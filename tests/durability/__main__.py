"""`python -m tests.durability --kills 1000 --seed 1`: long runs that print a summary."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from . import kills, power_loss

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kills", type=int, default=0, help="how many processes to kill")
parser.add_argument("--power-losses", type=int, default=0, help="how many disks to reconstruct")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--directory", type=Path, help="where stores are created; determines the disk under test")
options = parser.parse_args()

started = time.monotonic()
if options.kills:
    print(f"seed {options.seed}: {kills.run(options.kills, options.seed, options.directory)}", flush=True)
if options.power_losses:
    print(f"seed {options.seed}: {power_loss.run(options.power_losses, options.seed, options.directory)}", flush=True)
print(f"took {time.monotonic() - started:.0f} s")
