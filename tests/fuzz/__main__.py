"""`python -m tests.fuzz --inputs 100000 --seed 1`: the long run, which prints a summary."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from herder.engine.client import kubeconfig
from tests.fuzz import memory, roundtrip, sockets
from tests.fuzz.inputs.generators import generate
from tests.fuzz.runner import run
from tests.fuzz.server_pair import Pair
from tests.support.embedded import Embedded
from tests.support.kube import RealKube

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--inputs", type=int, default=10_000)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--only", default="", help="one kind of input: the start of its generator's name")
parser.add_argument("--input", type=int, help="run only the input with this number")
parser.add_argument("--examples", action="store_true", help="print inputs on which the servers disagreed")
parser.add_argument("--real", type=Path, help="kubeconfig of a kube-apiserver that is already running")


async def soak(options: argparse.Namespace, server: Embedded, real: Path) -> bool:
    connections = kubeconfig.load(real), kubeconfig.load(server.kubeconfig)
    pair = Pair.of(*connections)
    await pair.create_objects()
    numbers = range(options.inputs) if options.input is None else [options.input]
    before = memory.resident(server)
    inputs = ((number, generate(options.seed, number, options.only)) for number in numbers)
    summary = await run(*connections, inputs, seed=options.seed)
    print(summary.text(examples=options.examples), flush=True)
    stored = await roundtrip.run(pair, options.seed, max(1, options.inputs // 20))
    raw = await sockets.run(pair, options.seed, max(1, options.inputs // 100))
    await pair.close()
    print(f"{stored}\n{raw}\nmemory: {before >> 20} MB before, {memory.resident(server) >> 20} MB after")
    alive = server.process is not None and server.process.poll() is None
    return alive and not summary.failures and not stored.failures and not raw.failures


def main() -> int:
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
        server = stack.enter_context(Embedded(directory / "embedded"))
        real = options.real
        if real is None:
            (directory / "real").mkdir()
            real = stack.enter_context(RealKube(directory / "real", controller_manager=True)).kubeconfig
        return 0 if asyncio.run(soak(options, server, real)) else 1


if __name__ == "__main__":
    sys.exit(main())
