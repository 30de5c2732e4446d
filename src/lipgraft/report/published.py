"""The paper's figures, to be shown beside ours: SA, RA, VA, UNR in per cent, Time in seconds, the Lipschitz constant.

Keys are network/data set/method, with the radius in the data set's part where it is not the usual one, and the method
as the recipes call it. lg is the paper's own run of Linearity Grafting.
"""

from __future__ import annotations

from lipgraft.errors import SettingsError, unknown_name
from lipgraft.report.results import Published

PUBLISHED: dict[str, Published] = {
    # without extra losses (Table 1)
    "conv-big/cifar10/baseline": Published(86.76, 73.98, 1.5, 17.75, 121.61),
    "conv-big/cifar10/lg": Published(77.73, 61.52, 35.3, 5.99, 135.17),
    "conv-big/cifar10/ours": Published(74.31, 58.33, 46.2, 5.57, 65.06),
    "cnn-b/cifar10/baseline": Published(80.13, 63.00, 36.7, 16.74, 133.64, 65.95),
    "cnn-b/cifar10/lg": Published(73.49, 57.40, 48.1, 5.44, 51.57),
    "cnn-b/cifar10/ours": Published(73.16, 57.17, 51.6, 5.08, 29.44),
    "conv-huge/cifar10/baseline": Published(89.56, 74.06, 0.2, 17.32, 159.80),
    "conv-huge/cifar10/lg": Published(78.65, 62.17, 9.4, 9.21, 270.49),
    "conv-huge/cifar10/ours": Published(79.62, 62.62, 32.3, 8.80, 182.30),
    "conv-big/mnist/baseline": Published(99.19, 97.39, 92.1, 17.78, 15.77),
    "conv-big/mnist/lg": Published(99.38, 97.79, 94.9, 5.05, 8.65),
    "conv-big/mnist/ours": Published(98.96, 93.79, 85.1, 8.33, 37.34),
    "resnet4b/cifar10/baseline": Published(77.80, 60.17, 0.5, 20.44, 34.00),
    "resnet4b/cifar10/lg": Published(68.61, 52.36, 34.5, 7.10, 108.49),
    "resnet4b/cifar10/ours": Published(67.33, 51.15, 39.3, 7.49, 71.38),
    "conv-big/svhn/baseline": Published(88.76, 73.88, 13.3, 13.47, 213.17),
    "conv-big/svhn/lg": Published(88.28, 73.56, 55.0, 4.05, 74.53),
    "conv-big/svhn/ours": Published(88.25, 73.63, 60.9, 4.49, 55.97),
    # with extra losses, l1 and pruning (Table 2); the Lipschitz constants are from the tables that follow it
    "conv-big/cifar10/lg-rs": Published(77.04, 61.60, 41.3, 6.06, 104.15),
    "conv-big/cifar10/ours-slope": Published(69.39, 55.88, 50.6, 2.94, 26.50),
    "cnn-b/cifar10/lg-rs": Published(71.89, 57.71, 49.0, 5.66, 38.08),
    "cnn-b/cifar10/ours-slope": Published(71.09, 56.44, 52.0, 3.80, 14.27, 16.63),
    "cnn-b/cifar10/ours-slope-lowest": Published(sa=71.87, va=51.7, lipschitz=17.49),
    "conv-huge/cifar10/lg-rs": Published(75.50, 60.35, 25.5, 8.44, 181.24),
    "conv-huge/cifar10/ours-slope": Published(68.86, 55.80, 51.4, 1.21, 31.25),
    "conv-big/mnist/lg-rs": Published(99.30, 97.70, 95.3, 5.05, 5.84),
    "conv-big/mnist/ours-slope": Published(97.65, 86.65, 81.8, 0.25, 14.34),
    "resnet4b/cifar10/lg-rs": Published(67.43, 52.13, 37.4, 6.87, 89.01),
    "resnet4b/cifar10/ours-slope": Published(65.30, 50.73, 43.6, 6.16, 45.99),
    "conv-big/svhn/lg-rs": Published(89.03, 74.54, 60.0, 3.99, 59.94),
    "conv-big/svhn/ours-slope": Published(88.34, 74.68, 68.0, 1.61, 25.86),
    # eps 8/255
    "cnn-b/cifar10-8-255/lg": Published(58.87, 31.34, 4.7, 12.35, 257.59),
    "cnn-b/cifar10-8-255/ours": Published(52.89, 29.51, 15.7, 14.27, 126.69),
    "cnn-b/cifar10-8-255/ours-slope": Published(49.81, 29.62, 21.4, 3.71, 56.85),
    # other activations
    "cnn-b-sigmoid/cifar10/baseline": Published(sa=62.39, ra=50.82, va=41.5, time=1.32),
    "cnn-b-sigmoid/cifar10/ours": Published(sa=60.38, ra=48.06, va=43.1, time=2.96),
    "cnn-b-tanh/cifar10/baseline": Published(sa=65.59, ra=52.15, va=40.2, time=10.29),
    "cnn-b-tanh/cifar10/ours": Published(sa=63.1, ra=50.43, va=46.1, time=5.24),
    # other adversarial training
    "conv-big/cifar10-fgsm-mep/baseline": Published(sa=80.58, ra=69.74, va=2.6, time=259.47),
    "conv-big/cifar10-fgsm-mep/lg": Published(sa=73.87, ra=62.52, va=44.7, time=83.30),
    "conv-big/cifar10-fgsm-mep/ours": Published(sa=70.42, ra=58.97, va=46.0, time=67.31),
    "conv-big/cifar10-fgsm-pco/baseline": Published(sa=81.65, ra=69.26, va=5.1, time=277.51),
    "conv-big/cifar10-fgsm-pco/lg": Published(sa=74.07, ra=61.35, va=40.9, time=96.51),
    "conv-big/cifar10-fgsm-pco/ours": Published(sa=66.82, ra=53.57, va=43.2, time=65.28),
    # more classes
    "conv-big/cifar100/baseline": Published(sa=53.28, ra=36.41, va=1.8, time=127.86),
    "conv-big/cifar100/lg": Published(sa=42.27, ra=31.29, va=22.2, time=85.87),
    "conv-big/cifar100/ours": Published(sa=43.5, ra=32.11, va=25.5, time=42.95),
    # average in place of largest sensitivity
    "cnn-b/cifar10/ours-slope-average": Published(sa=73.99, ra=56.64, va=50.2, time=40.37, lipschitz=23.60),
    # certified training; the Lipschitz constant is that of the paper's "certifiably robust training", same SA and VA
    "cnn-b/cifar10/ibp": Published(61.47, 51.78, 49.5, 1.45, 4.45, 20.82),
    "cnn-b/cifar10/mtl-ibp": Published(71.52, 62.01, 57.0, 7.43, 17.32),
    "cnn-b/cifar10/ctbench": Published(70.99, 61.06, 58.3, 5.71, 6.86),
    # slope loss against RS loss, as that table has them (two figures differ from Table 2)
    "conv-big/cifar10-ablation/lg-rs": Published(77.04, 61.60, 41.3, 6.73, 104.15),
    "conv-big/cifar10-ablation/lg-slope": Published(75.37, 60.52, 45.4, 4.60, 76.03),
    "conv-big/cifar10-ablation/ours-rs": Published(71.55, 56.71, 49.7, 5.83, 37.95),
    "conv-big/cifar10-ablation/ours-slope": Published(69.14, 55.88, 50.6, 2.94, 26.50),
    # settings of the slope loss
    "conv-big/cifar10-slope/beta-1e-4-k-2": Published(sa=66.95, ra=54.21, va=47.6, time=23.84),
    "conv-big/cifar10-slope/beta-5e-5-k-2": Published(sa=69.39, ra=55.88, va=50.6, time=26.50),
    "conv-big/cifar10-slope/beta-1e-5-k-2": Published(sa=71.09, ra=56.75, va=48.5, time=45.26),
    "conv-big/cifar10-slope/beta-5e-5-k-4": Published(sa=69.86, ra=55.92, va=50.7, time=27.78),
    "conv-big/cifar10-slope/beta-5e-5-k-6": Published(sa=69.49, ra=55.96, va=48.8, time=39.96),
    # settings of the scores
    "conv-big/cifar10-score/pool-80-share-10": Published(sa=69.29, ra=55.37, va=51.3, time=19.78),
    "conv-big/cifar10-score/pool-80-share-15": Published(sa=69.39, ra=55.88, va=50.6, time=26.50),
    "conv-big/cifar10-score/pool-80-share-20": Published(sa=69.66, ra=55.58, va=51.7, time=22.45),
    "conv-big/cifar10-score/pool-70-share-15": Published(sa=69.19, ra=55.78, va=51.3, time=26.4),
    "conv-big/cifar10-score/pool-90-share-15": Published(sa=69.53, ra=55.93, va=51.7, time=25.71),
    # all 10,000 test images
    "cnn-b/cifar10-full/ours-slope": Published(sa=71.09, ra=56.44, va=51.44),
}


def published(key: str) -> Published:
    """The paper's row of this name."""
    if key not in PUBLISHED:
        raise SettingsError(unknown_name("row of the paper", key, list(PUBLISHED)))
    return PUBLISHED[key]
