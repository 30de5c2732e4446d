"""Open images that move from one search to another: nothing that is left to prove gets lost."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hard_images import EPS, SETTINGS, images, network
from lipgraft.errors import SettingsError
from lipgraft.verification import Verdict, VerifySettings, verify, verify_stream
from lipgraft.verification.branch_and_bound.images import OpenImages
from lipgraft.verification.branch_and_bound.search import BranchAndBound
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.handover import HandoverError, Package, Relay
from lipgraft.verification.job import Job
from lipgraft.verification.stages import alpha_crown, crown
from lipgraft.verification.verdict import Decided


def job(x: Tensor, y: Tensor, settings: VerifySettings = SETTINGS) -> Job:
    return Job.of(network(), x, y, EPS, 0.0, 1.0, settings)


def search(work: Job) -> BranchAndBound:
    """Of all images that CROWN and optimised lines leave open."""
    with torch.no_grad():
        crowned = crown(work, list(range(len(work.x))))
        left = [one for margins in crowned.rest for one in alpha_crown(work, margins).rest]
    return BranchAndBound(work, OpenImages.cat(left))


def obligations(sub: Subproblems, numbers: list[int]) -> Counter[tuple[object, ...]]:
    """Image, target and splits of each subproblem: what has to be proved."""
    out = Counter[tuple[object, ...]]()
    for row in range(len(sub)):
        made = int(sub.depth[row])
        splits = frozenset(zip(sub.neuron[row, :made].tolist(), sub.sign[row, :made].tolist(), strict=True))
        out[(numbers[int(sub.image[row])], int(sub.target[row]), splits)] += 1
    return out


def in_pool(work: BranchAndBound) -> Counter[tuple[object, ...]]:
    out = obligations(work.pool.slots.at(work.pool.used), work.number)
    for blocks in work.pool.spilled.values():
        for block in blocks:
            out += obligations(block, work.number)
    return out


def after(work: BranchAndBound, rounds: int) -> BranchAndBound:
    """The search so many rounds later."""
    for _ in range(rounds):
        work.advance()
    return work


def sent(package: Package) -> Package:
    """As it comes out at the other end."""
    arrived = pickle.loads(pickle.dumps(package))
    assert isinstance(arrived, Package)
    return arrived


def live(work: BranchAndBound) -> list[int]:
    return [place for place, stopped in enumerate(work.stopped) if not stopped]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arithmetic", ["sound", "fast"])
@pytest.mark.parametrize("rounds", [0, 2, 8])
@pytest.mark.parametrize("spills", [False, True])
def test_what_is_left_to_prove_is_the_same_before_and_after(rounds: int, arithmetic: str, spills: bool) -> None:
    x, y = images()
    giver = after(search(job(x, y, SETTINGS.changed(arithmetic=arithmetic))), rounds)
    if spills:  # some of it lies in the host's memory
        giver.pool.spill_limit = 2**30
        giver.pool._spill(torch.nonzero(giver.pool.used).flatten()[::3])
    before, places = in_pool(giver), live(giver)[::2]
    assert len(places) > 1
    package = sent(giver.give(places))
    chosen = package.places
    theirs = job(x[chosen], y[chosen], giver.job.settings)
    receiver = BranchAndBound.going_on(theirs, package, None, None)
    arrived = Counter({(chosen[k[0]], *k[1:]): n for k, n in in_pool(receiver).items()})  # type: ignore[call-overload]
    assert in_pool(giver) + arrived == before
    assert not set(in_pool(giver)) & set(arrived)
    kept = {key[0] for key in in_pool(giver)}
    assert kept.isdisjoint(chosen)


@pytest.mark.long
@pytest.mark.parametrize("planes", [False, True], ids=["", "with planes above neurons"])
def test_verdicts_are_those_of_a_search_that_nobody_took_anything_from(planes: bool) -> None:
    x, y = images()
    expected = verify(network(), x, y, EPS, settings=SETTINGS)
    eager = {"neuron_after": 0, "neuron_splits": 0, "plane_steps": 12} if planes else {}
    settings = SETTINGS.changed(branch=eager)
    giver = after(search(job(x, y, settings)), 3)
    assert (giver.images.planes is not None) == planes
    found = dict(giver._drain())
    package = sent(giver.give(live(giver)[1:]))
    chosen = package.places
    receiver = BranchAndBound.going_on(job(x[chosen], y[chosen], settings), package, None, None)
    assert receiver.images.planes is None  # it fits its own
    assert receiver.taken.sum() > 0
    found |= dict(giver.run())
    theirs = {chosen[place]: verdict for place, verdict in receiver.run()}
    assert found.keys().isdisjoint(theirs)
    assert len(theirs) == len(chosen) > 2
    assert {v.status for v in theirs.values()} == {"verified", "falsified"}
    for image, verdict in (found | theirs).items():
        assert verdict.status == expected[image].status
    # The receiver's verdicts know of the giver's work.
    given = {image: standing["subproblems"] for image, standing in zip(chosen, package.standing, strict=True)}
    assert all(verdict.subproblems >= given[image] for image, verdict in theirs.items())


def test_a_subproblem_that_got_lost_on_the_way_is_noticed() -> None:
    x, y = images()
    giver = after(search(job(x, y)), 3)
    package = giver.give(live(giver)[1::2])
    chosen = package.places
    short = replace(package, sub=package.sub.at(slice(1, None)))
    with pytest.raises(HandoverError, match="as many"):
        BranchAndBound.going_on(job(x[chosen], y[chosen]), short, None, None)


@pytest.mark.parametrize("other", [{"arithmetic": "fast"}, {"speaks_of": "float32"}])
def test_a_search_of_another_kind_refuses_the_images(other: dict[str, str]) -> None:
    x, y = images()
    package = search(job(x, y)).give([0])
    chosen = package.places
    with pytest.raises(HandoverError, match="cannot go on"):
        BranchAndBound.going_on(job(x[chosen], y[chosen], SETTINGS.changed(**other)), package, None, None)


def test_images_with_certificates_are_not_handed_over() -> None:
    x, y = images(2)
    with pytest.raises(SettingsError, match="certificates"):
        verify_stream(network(), x, y, EPS, certificates=True, relay=Relay())


@pytest.mark.long
def test_who_asks_gets_half_of_the_images_and_each_has_one_verdict() -> None:
    x, y = images()
    relay, asked, packages = Relay(), threading.Event(), list[Package | None]()

    def ask() -> None:
        asked.set()
        packages.append(relay.ask())

    def watch(_: int) -> None:
        """After the first round: wait until somebody has asked."""
        if not asked.is_set():
            thread.start()
            while not relay.wanted:
                asked.wait(0.01)

    thread = threading.Thread(target=ask)
    with relay:
        found: list[Decided] = list(verify_stream(network(), x, y, EPS, settings=SETTINGS, watch=watch, relay=relay))
    thread.join(60)
    package = packages[0]
    assert package is not None
    assert {place for place, _ in found} | set(package.places) == set(range(len(x)))
    assert len(found) + len(package.places) == len(x)
    chosen = package.places
    rest = verify_stream(network(), x[chosen], y[chosen], EPS, settings=SETTINGS, package=sent(package))
    both: dict[int, Verdict] = dict(found) | {chosen[place]: verdict for place, verdict in rest}
    expected = verify(network(), x, y, EPS, settings=SETTINGS)
    assert [both[image].status for image in range(len(x))] == [verdict.status for verdict in expected]


def test_who_asks_when_nothing_runs_is_answered_at_once() -> None:
    relay, answers = Relay(), list[Package | None]()
    assert relay.ask() is None
    with relay:
        thread = threading.Thread(target=lambda: answers.append(relay.ask()))
        thread.start()
        while not relay.wanted:
            thread.join(0.01)
    thread.join(60)
    assert answers == [None]
