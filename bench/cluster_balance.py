"""How well a cluster's workers share a verification, simulated with the times per image of a finished one.

    python bench/cluster_balance.py runs/mine/results.sqlite --images 10000 --timeout 300

The chunks are those of `lipgraft.cluster.Queue`, as `lipgraft verify --cluster` hands them out. Images are drawn from
the file at random. One that ended for time is taken to use all of --timeout; all others take their recorded seconds.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Callable
from pathlib import Path

from lipgraft.cluster import Queue
from lipgraft.runs import read_results

GROUP = 256
"""The largest chunk of a worker with a GPU."""


class Static(Queue):
    """Every worker gets its share at once, as a loop in a shell would do it."""

    def take(self) -> list[int]:
        return [self._fresh.popleft() for _ in range(min(self.most, len(self._fresh)))]


def finish(times: list[float], workers: int, queue: Queue) -> float:
    """When the last of the workers is done."""
    free = [(0.0, worker) for worker in range(workers)]
    end = 0.0
    while len(queue):
        now, worker = heapq.heappop(free)
        chunk = queue.take()
        seconds = sum(times[image] for image in chunk)
        queue.took(len(chunk), seconds)
        heapq.heappush(free, (now + seconds, worker))
        end = max(end, now + seconds)
    return end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--cost", type=float, default=1.0, help="factor on the time of images that were decided")
    parser.add_argument("--open", type=float, help="share of images that end for time, instead of the file's")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 8, 32, 128])
    args = parser.parse_args()

    rows = read_results(args.results)
    decided = [row.verdict.seconds * args.cost for row in rows if row.verdict.reason != "timeout"]
    share = 1 - len(decided) / len(rows) if args.open is None else args.open
    draw = random.Random(0)
    times = [args.timeout if draw.random() < share else draw.choice(decided) for _ in range(args.images)]
    work = sum(times)
    stuck = sum(time >= args.timeout for time in times)
    mean = sum(decided) / len(decided)
    print(f"{len(rows)} rows; {len(decided)} decided ones take {mean:.4f} s on average, at most {max(decided):.2f}")
    print(f"{args.images} images, {stuck} of them for {args.timeout:g} s: {work / 3600:.2f} hours of work")
    print("\n| workers | hours at best | dealt out | of the best | equal shares | of the best |")
    print("|--:|--:|--:|--:|--:|--:|")
    everything = range(args.images)
    kinds: list[Callable[[int], Queue]] = [
        lambda n: Queue(everything, n, GROUP),
        lambda n: Static(everything, n, -(-args.images // n)),
    ]
    for workers in args.workers:
        best = max(work / workers, max(times))
        ends = [finish(times, workers, kind(workers)) for kind in kinds]
        cells = [f"{end / 3600:.2f} | {best / end:.0%}" for end in ends]
        print(f"| {workers} | {best / 3600:.2f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
