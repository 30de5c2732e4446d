"""Fitted lines: least squares over images, neuron by neuron."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lipgraft import grafting, models
from lipgraft.cli import main
from lipgraft.errors import SettingsError
from lipgraft.runs import load_recipe

SHAPE = (2, 4, 4)


def network(activation: nn.Module | None = None) -> nn.Module:
    act = activation or nn.ReLU()
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), act, nn.Flatten(), nn.Linear(48, 6), nn.ReLU(), nn.Linear(6, 3))


def images(count: int = 700) -> Tensor:
    return torch.rand(count, *SHAPE)


def values(model: nn.Module, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """{activation: its input and output (N, n)} by hooks on the model itself."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ReLU | nn.Tanh | nn.LeakyReLU):
            module.register_forward_hook(
                lambda _, given, out, name=name: found.update({name: (given[0].flatten(1), out.flatten(1))})
            )
    with torch.no_grad():
        model(x)
    return found


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.LeakyReLU(0.2)])
def test_lines_are_those_of_least_squares(activation: nn.Module) -> None:
    model, x = network(activation), images()
    lines = grafting.fit_lines(model, x)
    seen = values(model, x)
    assert lines.keys() == seen.keys()
    for name, (z, h) in seen.items():
        for j in range(0, z.shape[1], 5):
            columns = torch.stack([z[:, j], torch.ones(len(z))], 1).double()
            slope, intercept = torch.linalg.lstsq(columns, h[:, j : j + 1].double()).solution.flatten()
            assert float(lines[name].slope.flatten()[j]) == pytest.approx(float(slope), abs=1e-4)
            assert float(lines[name].intercept.flatten()[j]) == pytest.approx(float(intercept), abs=1e-4)


def test_neurons_that_are_lines_on_the_images_keep_the_networks_outputs() -> None:
    model, x = network(), images(50)
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([9.0, -9.0, 0.0]))  # always active, never active, both
    mask = torch.zeros(3, 4, 4, dtype=torch.bool)
    mask[:2] = True
    lines = grafting.fit_lines(model, x)
    torch.testing.assert_close(lines["1"].slope[0], torch.ones(4, 4))
    assert lines["1"].slope[1].abs().max() == lines["1"].intercept[1].abs().max() == 0
    with torch.no_grad():
        torch.testing.assert_close(grafting.apply(model, {"1": mask}, lines=lines)(x), model(x), atol=1e-4, rtol=1e-4)


def test_fitted_lines_disturb_a_network_less_than_constant_ones() -> None:
    model, x = network(), images()
    masks = {"1": torch.rand(3, 4, 4) < 0.7, "4": torch.rand(6) < 0.7}
    lines, fresh = grafting.fit_lines(model, x), images()
    with torch.no_grad():
        right = model(fresh)
        fitted, constant = (grafting.apply(model, masks, lines=given)(fresh) for given in (lines, None))
    assert (fitted - right).square().mean() < 0.5 * (constant - right).square().mean()


def test_a_neuron_that_never_moves_gets_its_value() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([0.7, -0.7]))
    line = grafting.fit_lines(model, images(20))["2"]
    assert line.slope.tolist() == [0.0, 0.0]
    assert line.intercept.tolist() == pytest.approx([0.7, 0.0])


def test_mistakes_are_answered_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    with pytest.raises(SettingsError, match="no lines for the activation 4"):
        grafting.apply(model, {"4": torch.ones(6, dtype=torch.bool)}, lines={})
    with pytest.raises(SettingsError, match="no images"):
        grafting.fit_lines(model, images(0))
    with pytest.raises(SettingsError, match="Did you mean 'fitted'"):
        load_recipe("quickstart", {"defaults.graft.lines": "fited"})
    models.save(models.build("digits-cnn", "digits", seed=0), tmp_path / "base.safetensors")
    line = ["graft", str(tmp_path / "base.safetensors"), "--data", "digits", "--eps", "0.1", "--count", "20"]
    assert main([*line, "--lines", "curved", "--show"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    out = tmp_path / "grafted.safetensors"
    assert main([*line, "--lines", "fitted", "--ratio", "0.4", "--out", str(out), "--device", "cpu"]) == 0
    grafted = models.load(out)
    slopes = torch.cat([m.gamma[m.mask] for m in grafted.modules() if isinstance(m, grafting.GraftedActivation)])
    assert slopes.std() > 0.01
