"""Every proof that the verifier writes down convinces the checker, which shares no code with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lipgraft.checker import check_folder
from lipgraft.errors import SettingsError
from lipgraft.grafting.activation import GraftedActivation
from lipgraft.interop import CertificateFolder
from lipgraft.verification import (
    AttackSettings,
    BranchSettings,
    OptimiseSettings,
    Verdict,
    VerifySettings,
    verify_stream,
)

SETTINGS = VerifySettings(
    attack=AttackSettings(steps=10, restarts=1),
    optimise=OptimiseSettings(refine="all", iterations=5, refine_iterations=3),
    branch=BranchSettings(iterations=2),
)
SHAPE = (1, 5, 5)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.inner = nn.Sequential(nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1))
        self.last = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(75, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        out: Tensor = self.last(y + self.inner(y))
        return out


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    mask = torch.rand(12) < 0.4
    dense = [nn.Flatten(), nn.Linear(25, 16), nn.ReLU(), nn.Linear(16, 12)]
    return {
        "dense": nn.Sequential(*dense, nn.ReLU(), nn.Linear(12, 3)),
        "grafted": nn.Sequential(*dense, GraftedActivation(nn.ReLU(), mask, 0.4, 0.1), nn.Linear(12, 3)),
        "leaky": nn.Sequential(*dense, nn.LeakyReLU(0.01), nn.Linear(12, 3)),
        "convolutional": nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4, 8),
            nn.Hardtanh(),
            nn.Linear(8, 3),
        ),
        "residual": Residual(),
        "affine": nn.Sequential(nn.Flatten(), nn.Linear(25, 3)),
    }


def write(model: nn.Module, folder: Path, settings: VerifySettings, count: int = 24) -> list[Verdict]:
    """Verify images at radii around those where proofs begin to fail, and write what is found."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=1.5 / module.weight[0].numel() ** 0.5)
    model.eval()
    x = torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = model(x).argmax(1)
    out = CertificateFolder(folder)
    verdicts = []
    for place, verdict in verify_stream(
        model, x, y, torch.linspace(0.01, 0.25, count), settings=settings, certificates=True
    ):
        verdicts.append(verdict)
        if verdict.certificate is not None:
            out.put(place, verdict.certificate)
    return verdicts


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", networks())
def test_the_checker_accepts_every_certificate(name: str, tmp_path: Path) -> None:
    verdicts = write(networks()[name], tmp_path, SETTINGS)
    outcomes = check_folder(tmp_path)
    assert not [outcome.reason for outcome in outcomes if not outcome.accepted]
    proofs = [outcome for outcome in outcomes if outcome.kind == "proof"]
    assert len(proofs) == sum(v.status == "verified" for v in verdicts) > 0
    assert len(outcomes) - len(proofs) == sum(v.status == "falsified" for v in verdicts) > 0


def test_a_proof_that_was_cut_short_does_not_count_as_there(tmp_path: Path) -> None:
    write(networks()["dense"], tmp_path, SETTINGS, count=4)
    file = next(tmp_path.glob("??????.npz"))
    folder, number = CertificateFolder(tmp_path), int(file.stem)
    assert folder.has(number)
    file.write_bytes(file.read_bytes()[:-30])
    assert not folder.has(number)
    file.unlink()
    assert not folder.has(number)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["dense", "grafted", "residual"])
def test_the_checker_accepts_certificates_about_float32(name: str, tmp_path: Path) -> None:
    write(networks()[name], tmp_path, SETTINGS.changed(speaks_of="float32", attack={"restarts": 0}))
    outcomes = [outcome for outcome in check_folder(tmp_path) if outcome.kind == "proof"]
    assert not [outcome.reason for outcome in outcomes if not outcome.accepted]
    assert {outcome.speaks_of for outcome in outcomes} == {"float32"}


def test_branching_leaves_its_tree_in_the_certificate(tmp_path: Path) -> None:
    verdicts = write(networks()["dense"], tmp_path, SETTINGS)
    deep = [v for v in verdicts if v.status == "verified" and v.method == "bab" and v.subproblems > 0]
    assert deep
    for verdict in deep:
        assert verdict.certificate is not None
        assert verdict.certificate.arrays["leaf_depth"].max() > 0


def test_exact_arithmetic_agrees(tmp_path: Path) -> None:
    write(networks()["dense"], tmp_path, SETTINGS, count=8)
    outcomes = check_folder(tmp_path, exact=20)
    assert all(outcome.accepted for outcome in outcomes)
    assert sum(outcome.exact for outcome in outcomes) > 0


def test_a_folder_takes_certificates_of_one_network(tmp_path: Path) -> None:
    write(networks()["dense"], tmp_path, SETTINGS, count=4)
    with pytest.raises(SettingsError, match="another network"):
        write(networks()["leaky"], tmp_path, SETTINGS, count=4)


def test_fast_proofs_and_smooth_activations_have_no_certificates() -> None:
    x, y = torch.rand(1, *SHAPE), torch.zeros(1, dtype=torch.int64)
    fast = SETTINGS.changed(arithmetic="fast")
    with pytest.raises(SettingsError, match="arithmetic: sound"):
        list(verify_stream(networks()["dense"], x, y, 0.1, settings=fast, certificates=True))
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(25, 4), nn.Tanh(), nn.Linear(4, 3))
    with pytest.raises(SettingsError, match="smooth"):
        list(verify_stream(smooth, x, y, 0.1, settings=SETTINGS, certificates=True))
    falling = nn.Sequential(nn.Flatten(), nn.Linear(25, 4), nn.LeakyReLU(-0.5), nn.Linear(4, 3))
    with pytest.raises(SettingsError, match="leaky ReLU with a float32 slope >= 0, "):
        list(verify_stream(falling, x, y, 0.1, settings=SETTINGS, certificates=True))
