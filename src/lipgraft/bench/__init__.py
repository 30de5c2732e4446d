"""Benchmarks: how fast bounds, scores, training and verification are on this machine."""

from lipgraft.bench.bounds import bench_bounds
from lipgraft.bench.scores import ScoreBenchmark, bench_scores
from lipgraft.bench.training import bench_train
from lipgraft.bench.verification import bench_verify

__all__ = ["ScoreBenchmark", "bench_bounds", "bench_scores", "bench_train", "bench_verify"]
