"""Properties of ONNX networks that are proved leave certificates, one folder per region, which the checker accepts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from lipgraft.checker import check_folder
from lipgraft.cli import main
from lipgraft.interop import export_onnx, verify_instances, verify_vnnlib
from lipgraft.verification import VerifySettings

TWO_REGIONS = """
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const X_2 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (or
  (and (>= X_0 0.1) (<= X_0 0.3) (>= X_1 0.2) (<= X_1 0.4) (>= X_2 0.0) (<= X_2 0.2) (>= Y_0 {most}))
  (and (>= X_0 0.1) (<= X_0 0.25) (>= X_1 0.2) (<= X_1 0.4) (>= X_2 0.0) (<= X_2 0.2) (<= Y_1 {least}) (>= Y_0 Y_1))
))
"""


@pytest.fixture
def property_files(tmp_path: Path) -> tuple[Path, Path]:
    """A network, and what it never does by a wide margin: exceed its bounds of interval arithmetic."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 2))
    with torch.no_grad():
        points = model(torch.rand(4096, 3) * 0.2 + torch.tensor([0.1, 0.2, 0.0]))
    export_onnx(model, tmp_path / "net.onnx", (3,))
    most, least = float(points[:, 0].max()) + 0.01, float(points[:, 1].min()) - 0.01
    (tmp_path / "spec.vnnlib").write_text(TWO_REGIONS.format(most=most, least=least))
    return tmp_path / "net.onnx", tmp_path / "spec.vnnlib"


def test_every_region_of_a_property_has_a_certificate(property_files: tuple[Path, Path], tmp_path: Path) -> None:
    proofs = tmp_path / "proofs"
    assert verify_vnnlib(*property_files, 60.0, certificates=proofs).status == "unsat"
    outcomes = check_folder(proofs)
    assert [outcome.name for outcome in outcomes] == ["region-00000/000000.npz", "region-00001/000000.npz"]
    assert all(outcome.accepted and outcome.kind == "proof" for outcome in outcomes)


def test_a_table_has_a_folder_per_instance_and_proves_again_what_has_none(
    property_files: tuple[Path, Path], tmp_path: Path
) -> None:
    table, proofs = tmp_path / "instances.csv", tmp_path / "proofs"
    table.write_text("net.onnx,spec.vnnlib,60\n")
    assert verify_instances(table).reused == 0
    assert verify_instances(table, certificates=proofs).reused == 0
    assert verify_instances(table, certificates=proofs).reused == 1
    assert [path.name for path in proofs.iterdir()] == ["00000_spec"]
    assert all(outcome.accepted for outcome in check_folder(proofs))


def test_the_command_line_writes_and_checks_them(
    property_files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proofs = str(tmp_path / "proofs")
    assert main(["vnnlib", *map(str, property_files), "--certificates", proofs, "--device", "cpu"]) == 0
    assert main(["check", proofs]) == 0
    assert "2 of 2 proofs checked" in capsys.readouterr().out


class Moving(nn.Module):
    """Numbers of the input are swapped, cut and put side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 8), nn.ReLU(), nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.act(self.first(torch.cat([x.flip(1), x], 1)))
        return self.last(torch.cat([z, z[:, [1, 1, 3]], x[:, :1]], 1))


@pytest.mark.long
@pytest.mark.parametrize("speaks_of", ["real", "float32"])
def test_numbers_that_move_are_a_part_of_proofs(speaks_of: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, spec, proofs = Moving(), tmp_path / "spec.vnnlib", tmp_path / "proofs"
    with torch.no_grad():
        points = model(torch.rand(4096, 3) * 0.2 + torch.tensor([0.1, 0.2, 0.0]))
    export_onnx(model, tmp_path / "net.onnx", (3,))
    most, least = float(points[:, 0].max()) + 0.01, float(points[:, 1].min()) - 0.01
    spec.write_text(TWO_REGIONS.format(most=most, least=least))
    settings = VerifySettings(speaks_of=speaks_of)
    answer = verify_vnnlib(tmp_path / "net.onnx", spec, 60.0, certificates=proofs, settings=settings)
    assert answer.status == "unsat"
    outcomes = check_folder(proofs)
    assert len(outcomes) == 2
    assert all(outcome.accepted for outcome in outcomes)
