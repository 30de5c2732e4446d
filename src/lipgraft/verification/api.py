"""`verify`: one verb for a batch of images."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from torch import Tensor, nn

from lipgraft.errors import SettingsError
from lipgraft.inputs import labels, pixels, seconds
from lipgraft.verification.branch_and_bound.branching import branching_named
from lipgraft.verification.branch_and_bound.search import Watch
from lipgraft.verification.cascade import cascade
from lipgraft.verification.handover import Package, Relay
from lipgraft.verification.job import Job
from lipgraft.verification.ledger import Decided
from lipgraft.verification.settings import VerifySettings
from lipgraft.verification.verdict import Verdict


def verify(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float | Tensor,
    *,
    timeout: float | None = None,
    low: float | None = 0.0,
    high: float | None = 1.0,
    settings: VerifySettings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Verdict]:
    """Is every point within eps of x (in the maximum norm, inside [low, high]) classified as y? One verdict per image.

    An image is verified if the true logit is strictly the largest at every such point, falsified if a wrong logit is
    strictly larger than the true one at some point; a tie is neither. A verdict speaks of the model in evaluation mode
    with the weights that it stores: as a function of real numbers, or as float32 hardware evaluates it
    (settings.speaks_of). A model of half precision is computed with in single precision. The model is left as it was.

    x: (B, *shape), inside [low, high], any module of supported operations takes it; y: (B,) true classes; eps: a number
    or (B,).
    timeout: seconds of device time per image, 300 unless given here or in the settings.
    progress: called with the images decided so far and their number, such as `lipgraft.progress.bar` makes it.

    Examples:
        >>> import torch
        >>> import lipgraft as lg
        >>> model = torch.nn.Linear(2, 2)
        >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
        >>> x, y = torch.tensor([[0.8, 0.2], [0.52, 0.48]]), torch.tensor([0, 0])
        >>> [verdict.status for verdict in lg.verify(model, x, y, 0.1)]
        ['verified', 'falsified']
    """
    verdicts: dict[int, Verdict] = {}
    for image, verdict in verify_stream(model, x, y, eps, timeout=timeout, low=low, high=high, settings=settings):
        verdicts[image] = verdict
        if progress is not None:
            progress(len(verdicts), len(x))
    return [verdicts[image] for image in sorted(verdicts)]


def verify_stream(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float | Tensor,
    *,
    timeout: float | None = None,
    low: float | None = 0.0,
    high: float | None = 1.0,
    settings: VerifySettings | None = None,
    watch: Watch | None = None,
    certificates: bool = False,
    relay: Relay | None = None,
    package: Package | None = None,
) -> Iterator[Decided]:
    """`verify`, delivering (place in the batch, verdict) as images end. Wrong arguments are refused before the first.

    watch: called after every round of branch and bound with the number of subproblems bounded in it.
    certificates: verdicts of verified and falsified images come with what it takes to check them (see
        `interop.CertificateFolder`).
    relay: who may ask for some of the images while they are branched on, to go on with them elsewhere; those have no
        verdict here. Not with certificates, which would miss a part.
    package: such images; x, y and eps are theirs.
    """
    if certificates and (relay is not None or package is not None):
        raise SettingsError("images whose certificates are kept cannot be handed over.")
    began = time.perf_counter()
    chosen = settings or VerifySettings()
    if timeout is not None:
        chosen = chosen.changed(limits={"timeout": seconds(timeout, "timeout")})
    branching_named(chosen.branch.rule)
    x = pixels(x, low, high)
    y = labels(y, len(x), x.device)
    if len(x) == 0:
        return iter(())
    return cascade(Job.of(model, x, y, eps, low, high, chosen, began, certificates=certificates), watch, relay, package)
