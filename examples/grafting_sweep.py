"""How much grafting? One network, several ratios: standard against verified accuracy, as a plot (needs matplotlib).

python examples/grafting_sweep.py
"""

import copy
from dataclasses import replace

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import torch

import lipgraft as lg

EPS, EPOCHS, IMAGES, RATIOS = 0.1, 6, 40, (0.0, 0.2, 0.4, 0.6)


def main() -> None:
    torch.manual_seed(0)
    data, model = lg.data.load("digits"), lg.models.build("digits-cnn", "digits", seed=0)
    lg.train(model, data, lg.TrainSettings(epochs=EPOCHS, batch=64, eps=EPS, clip=1.0), device="cpu")
    tuning = replace(lg.training.preset("finetune-short"), epochs=2, batch=64, eps=EPS)
    x, y = lg.data.images(data.x_test[:IMAGES]), data.y_test[:IMAGES]

    standard, verified = [], []
    for ratio in RATIOS:
        grafted = lg.graft(model, data, EPS, ratio=ratio, count=50) if ratio else copy.deepcopy(model)
        lg.train(grafted, data, tuning, device="cpu")
        verdicts = lg.verify(grafted, x, y, EPS, timeout=1.0)
        standard.append(lg.training.accuracy(grafted, data.x_test, data.y_test))
        verified.append(sum(verdict.status == "verified" for verdict in verdicts) / IMAGES)
        print(f"ratio {ratio:.1f}: SA {standard[-1]:.1%}, VA {verified[-1]:.1%}")

    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    axes.plot(RATIOS, standard, marker="o", label="standard accuracy")
    axes.plot(RATIOS, verified, marker="o", label=f"proved at eps {EPS}")
    axes.set(xlabel="share of neurons that are lines", ylim=(0, 1))
    axes.legend()
    figure.savefig("sweep.svg")
    print("sweep.svg")


if __name__ == "__main__":
    main()
