"""Which images are handed out next."""

from __future__ import annotations

import pytest

from lipgraft.cluster import Queue
from lipgraft.cluster.crew import DEATHS
from lipgraft.cluster.driver import GPU_CHUNK, first_queue
from lipgraft.verification import VerifySettings


@pytest.mark.parametrize(("count", "workers", "most"), [(0, 1, 1), (1, 4, 32), (100, 2, 32), (1000, 3, 256), (7, 9, 1)])
def test_every_image_is_handed_out_once_in_chunks_that_never_grow(count: int, workers: int, most: int) -> None:
    queue, chunks = Queue(range(count), workers, most), list[list[int]]()
    while len(queue):
        chunks.append(queue.take())
    assert [image for chunk in chunks for image in chunk] == list(range(count))
    sizes = [len(chunk) for chunk in chunks]
    assert sizes == sorted(sizes, reverse=True)
    assert all(1 <= size <= most for size in sizes)


def test_chunks_of_quick_images_are_no_smaller_than_what_is_worth_a_message() -> None:
    queue = Queue(range(100), 4, 32)
    assert len(queue.take()) == 7
    queue.took(7, 0.35)  # a twentieth of a second each
    assert [len(queue.take()) for _ in range(10)] == [10] * 9 + [3]
    slow = Queue(range(100), 4, 32)
    slow.took(7, 70.0)
    assert len(slow.take()) == 7


def test_chunks_are_no_smaller_than_asked_for_but_for_the_last() -> None:
    queue = Queue(range(1000), 2, 1024, least=400)
    assert [len(queue.take()) for _ in range(3)] == [400, 400, 200]


@pytest.mark.parametrize(("images", "workers"), [(0, 2), (1, 4), (200, 2), (5000, 2), (10, 3)])
def test_when_the_runs_time_is_limited_a_cpu_gets_its_whole_share_so_that_hard_images_do_not_delay_the_others(
    images: int, workers: int
) -> None:
    limited = first_queue(images, workers, VerifySettings().changed(limits={"total_seconds": 60.0}), on_gpu=False)
    sizes = list[int]()
    while len(limited):
        sizes.append(len(limited.take()))
    assert sum(sizes) == images
    assert len(sizes) <= workers
    assert limited.died([]) == []  # a worker that had none yet


def test_else_a_cpu_gets_small_chunks_and_a_gpu_as_many_images_as_it_takes_at_once() -> None:
    assert len(first_queue(5000, 2, VerifySettings(), on_gpu=False).take()) == 32
    assert len(first_queue(5000, 2, VerifySettings(), on_gpu=True).take()) == GPU_CHUNK
    assert len(first_queue(300, 2, VerifySettings(), on_gpu=True).take()) == 150


def test_a_dead_workers_images_come_back_first_and_one_at_a_time() -> None:
    queue = Queue(range(100), 2, 32)
    chunk = queue.take()
    assert len(chunk) > 2
    assert queue.died(chunk[1:]) == []
    assert [queue.take() for _ in chunk[1:]] == [[image] for image in chunk[1:]]
    assert queue.take()[0] == chunk[-1] + 1


def test_large_chunks_come_back_in_pieces_and_what_kills_again_comes_alone() -> None:
    queue = Queue(range(64), 1, 1024, least=64)
    assert queue.died(queue.take()) == []
    assert len(queue) == 64
    piece = queue.take()
    assert piece == list(range(8))
    assert queue.died(piece) == []
    rest = [queue.take() for _ in range(7)]
    assert [len(chunk) for chunk in rest] == [8] * 7
    assert [queue.take() for _ in range(8)] == [[image] for image in piece]
    assert len(queue) == 0


def test_an_image_is_given_up_when_too_many_workers_died_of_it() -> None:
    queue = Queue([5], 1, 32)
    for _ in range(DEATHS - 1):
        assert queue.take() == [5]
        assert queue.died([5]) == []
    assert queue.take() == [5]
    assert queue.died([5]) == [5]
    assert len(queue) == 0
