"""Proofs with planes above neurons convince the checker, by the verifier's own bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lipgraft.checker import Outcome, check_folder
from lipgraft.grafting.activation import GraftedActivation
from lipgraft.interop import CertificateFolder
from lipgraft.verification import Verdict, VerifySettings, verify_stream
from lipgraft.verification.branch_and_bound import branching, lifting
from window_networks import SIZE, module

pytestmark = pytest.mark.xdist_group("certificates with planes")  # one process makes the fixture

EAGER = VerifySettings().changed(
    attack={"restarts": 0, "search_every": 0},
    optimise={"refine": "all", "iterations": 1, "refine_iterations": 1},
    limits={"max_subproblems": 400},
    branch={"neuron_after": 1, "plane_steps": 40, "batch": 16},
)


class Residual(nn.Module):
    """Neurons that read two activations, and an activation and the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.direct, self.last = nn.Conv2d(1, 3, 1), nn.Linear(75, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        y = (self.second(y) + self.direct(x)).relu() + y
        out: Tensor = self.last((self.second(y) - y).relu().flatten(1))
        return out


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 2),
        nn.ReLU6(),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def grafted() -> nn.Module:
    """Lines right before neurons, too, with nothing but a scale between."""
    masks = [torch.rand(12, generator=torch.Generator().manual_seed(k)) < 0.4 for k in range(2)]
    lines = [GraftedActivation(nn.ReLU(), mask, 0.4, -0.1) for mask in masks]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(25, 12), lines[0], nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 12), lines[1],
        nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def case(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with images, and radii at which branching is needed."""
    generator = torch.Generator().manual_seed(3)
    if name in ("windows", "grafted windows"):
        model: nn.Module = module("relu" if name == "windows" else "grafted").float()
        return model, torch.rand(8, 2, SIZE, SIZE, generator=generator), torch.tensor(0.02)
    torch.manual_seed(0)
    model = {"residual": Residual, "pooled": pooled, "grafted": grafted}[name]()
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.normal_(layer.weight, std=1.5 / layer.weight[0].numel() ** 0.5)
    least, most = {"residual": (0.02, 0.06), "pooled": (0.02, 0.2), "grafted": (0.01, 0.12)}[name]
    return model.eval(), torch.rand(12, 1, 5, 5, generator=generator), torch.linspace(least, most, 12)


def write(name: str, folder: Path, settings: VerifySettings) -> dict[int, Verdict]:
    model, x, eps = case(name)
    y = model(x).argmax(1)
    out, verdicts = CertificateFolder(folder), {}
    for place, verdict in verify_stream(model, x, y, eps, settings=settings, certificates=True):
        verdicts[place] = verdict
        if verdict.status == "verified":
            assert verdict.certificate is not None
            out.put(place, verdict.certificate)
    return verdicts


def arrays(verdict: Verdict) -> dict[str, np.ndarray]:
    assert verdict.certificate is not None
    return verdict.certificate.arrays


def lifted(verdicts: dict[int, Verdict]) -> dict[int, Verdict]:
    """The verified images that have planes."""
    return {k: v for k, v in verdicts.items() if v.status == "verified" and "leaf_plane" in arrays(v)}


def checked(folder: Path, exact: int = 0) -> dict[int, Outcome]:
    outcomes = check_folder(folder, exact=exact)
    assert not [outcome.reason for outcome in outcomes if not outcome.accepted]
    return {int(outcome.name.split(".")[0]): outcome for outcome in outcomes}


def agree(folder: Path, verdicts: dict[int, Verdict]) -> None:
    """The checker accepts all, some of it without rounding, and finds no bound worse than the verifier did."""
    outcomes, found = checked(folder, exact=4), lifted(verdicts)
    assert found
    assert sum(outcome.exact for outcome in outcomes.values()) == 4
    for place, verdict in found.items():
        assert (arrays(verdict)["leaf_plane"] >= 0).any()
        assert verdict.margin is not None
        assert outcomes[place].margin >= verdict.margin


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["grafted windows", "residual", "pooled", "grafted"])
def test_the_checker_finds_the_bounds_that_the_verifier_proved(name: str, tmp_path: Path) -> None:
    agree(tmp_path, write(name, tmp_path, EAGER))


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Verdict]]:
    """Images that take some hundred subproblems, and whose planes are fitted anew however few of them are open."""
    folder = tmp_path_factory.mktemp("windows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, "MANY", 1)
        return folder, write("windows", folder, EAGER)


@pytest.mark.long
def test_more_is_proved_than_without_and_checked(windows: tuple[Path, dict[int, Verdict]], tmp_path: Path) -> None:
    agree(*windows)
    plain = write("windows", tmp_path, EAGER.changed(branch={"plane_steps": 0}))
    checked(tmp_path)
    assert not lifted(plain)
    proved = [{k for k, v in some.items() if v.status == "verified"} for some in (windows[1], plain)]
    assert proved[0] > proved[1]


@pytest.mark.long
def test_leaves_of_one_margin_rest_on_planes_of_several_fits(windows: tuple[Path, dict[int, Verdict]]) -> None:
    fits = [
        {int(plane) for plane in arrays(v)["leaf_plane"][arrays(v)["leaf_row"] == row] if plane >= 0}
        for v in lifted(windows[1]).values()
        for row in (0, 1)
    ]
    assert max(len(kinds) for kinds in fits) > 1


@pytest.mark.long
def test_sets_may_be_above_different_neurons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(branching, "SPARED", 0.3)
    monkeypatch.setattr(lifting, "MANY", 1)
    verdicts = write("windows", tmp_path, EAGER)
    agree(tmp_path, verdicts)
    used = [array for v in lifted(verdicts).values() for name, array in arrays(v).items() if name.endswith("_used")]
    assert any((array.sum(1) < array.shape[1]).any() for array in used)


@pytest.mark.long
def test_without_their_planes_proofs_do_not_stand(windows: tuple[Path, dict[int, Verdict]], tmp_path: Path) -> None:
    out = CertificateFolder(tmp_path)
    for place, verdict in lifted(windows[1]).items():
        assert verdict.certificate is not None
        rest = {name: array for name, array in arrays(verdict).items() if name != "leaf_plane"}
        out.put(place, replace(verdict.certificate, arrays=rest))
    assert any("not proved" in outcome.reason for outcome in check_folder(tmp_path))


@pytest.mark.long
def test_only_files_with_planes_are_of_the_second_version(windows: tuple[Path, dict[int, Verdict]]) -> None:
    folder, verdicts = windows
    versions = set()
    for path in folder.glob("*.npz"):
        with np.load(path) as file:
            version = 2 if int(path.stem) in lifted(verdicts) else 1
            assert f'"version": {version}'.encode() in file["meta"].tobytes()
            versions.add(version)
    assert versions == {1, 2}


class Twice(nn.Module):
    """Two activations read the same node, one of them with lines."""

    def __init__(self) -> None:
        super().__init__()
        mask = torch.rand(12, generator=torch.Generator().manual_seed(0)) < 0.5
        self.first, self.second, self.last = nn.Linear(25, 12), nn.Linear(12, 12), nn.Linear(12, 3)
        self.bent = GraftedActivation(nn.ReLU(), mask, -0.4, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x.flatten(1)).relu())
        out: Tensor = self.last((y.relu() + self.bent(y)).relu())
        return out


def test_where_the_checker_would_know_less_there_are_no_planes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Twice().eval()
    x = torch.rand(12, 1, 5, 5, generator=torch.Generator().manual_seed(3))
    y, out, verdicts = model(x).argmax(1), CertificateFolder(tmp_path), {}
    for place, verdict in verify_stream(model, x, y, torch.linspace(0.05, 0.3, 12), settings=EAGER, certificates=True):
        verdicts[place] = verdict
        if verdict.status == "verified" and verdict.certificate is not None:
            out.put(place, verdict.certificate)
    assert not lifted(verdicts)
    assert any(v.method == "bab" for v in verdicts.values() if v.status == "verified")
    checked(tmp_path)
