"""Training that makes proofs easier: one network trained plainly, against attacks, and grafted with the slope loss.

python examples/training_for_proofs.py
"""

from dataclasses import replace

import torch

import lipgraft as lg

EPS, EPOCHS, IMAGES = 0.08, 6, 30


def measured(name: str, model: torch.nn.Module, data: lg.data.Dataset) -> None:
    x, y = lg.data.images(data.x_test[:IMAGES]), data.y_test[:IMAGES]
    verdicts = lg.verify(model, x, y, EPS, timeout=1.0)
    sa = lg.training.accuracy(model, data.x_test, data.y_test)
    va = sum(verdict.status == "verified" for verdict in verdicts) / IMAGES
    constant = float(lg.lipschitz(model, x[:5], EPS, method="interval-jacobian").mean())
    print(f"{name:<28} SA {sa:.1%}  VA {va:.1%}  Lipschitz constant at most {constant:.0f}")


def main() -> None:
    data = lg.data.load("digits")
    base = lg.TrainSettings(epochs=EPOCHS, batch=64, eps=EPS, clip=1.0)
    for objective in ("standard", "fat"):
        model = lg.models.build("digits-cnn", "digits", seed=0)
        lg.train(model, data, replace(base, objective=objective, grad_align=0.0), device="cpu")
        measured(objective, model, data)

    grafted = lg.graft(model, data, EPS, ratio=0.4, count=50)
    tuning = replace(lg.training.preset("finetune-short"), epochs=2, batch=64, eps=EPS, slope=5e-4, l1=1e-4)
    lg.train(grafted, data, tuning, device="cpu")
    measured("fat, grafted, slope loss", grafted, data)


if __name__ == "__main__":
    main()
