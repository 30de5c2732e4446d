"""A network of your own: train it, verify it, look at what was found.

python examples/own_model.py
"""

from collections import Counter

import torch

import lipgraft as lg

EPS, EPOCHS, IMAGES = 0.05, 8, 30


class Mine(torch.nn.Module):
    """Any module will do, as long as torch.fx can trace it: here with a shortcut and a function as activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 40)
        self.second = torch.nn.Linear(40, 40)
        self.last = torch.nn.Linear(40, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x.flatten(1)))
        return self.last(x + torch.relu(self.second(x)))


def main() -> None:
    torch.manual_seed(0)
    data, model = lg.data.load("digits"), Mine()
    lg.train(model, data, lg.TrainSettings(epochs=EPOCHS, batch=64, eps=EPS), device="cpu")

    x, y = lg.data.images(data.x_test[:IMAGES]), data.y_test[:IMAGES]
    with lg.progress.bar("verifying") as show:
        verdicts = lg.verify(model, x, y, EPS, timeout=5.0, progress=show)
    print(Counter(verdict.status for verdict in verdicts))
    for number, verdict in enumerate(verdicts):
        if verdict.counterexample is not None and verdict.correct:
            wrong = int(model(verdict.counterexample[None]).argmax())
            print(f"image {number}: a {int(y[number])} becomes a {wrong} within {EPS}")

    lg.save(model, "mine.safetensors", input_shape=data.input_shape)  # with its graph: no source needed to load it
    print(lg.bound(lg.load("mine.safetensors"), lg.Box.linf(x, EPS)))


if __name__ == "__main__":
    main()
