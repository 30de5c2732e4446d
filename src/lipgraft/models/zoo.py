"""The model zoo: trained networks by name, each a checkpoint and a card that says what was measured on it.

The files are not part of the package. They are looked for in the folder LIPGRAFT_ZOO, else in `zoo` below the current
folder, where a clone of the repository has them.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from lipgraft.errors import CheckpointError, unknown_name
from lipgraft.settings import build, setting

PREFIX = "zoo/"


@dataclass(frozen=True)
class Measured:
    """Percentages over the first `images` test images, but for sa and ra where ra is given: all test images."""

    sa: float = setting(help="Standard accuracy.")
    attacked: float = setting(help="Images that the verifier's own attack does not break.")
    va: float = setting(help="Verified accuracy.")
    open: int = setting(help="Images left undecided.")
    images: int = setting(help="Images given to the verifier.")
    seconds: float = setting(help="Wall time for all of them.")
    ra: float | None = setting(None, "Accuracy under PGD-100, one start, all test images.")
    unr: float | None = setting(None, "Share of unstable neurons.")
    lipschitz: float | None = setting(None, "Mean bound on the local Lipschitz constant, normalised units.")


@dataclass(frozen=True)
class Card:
    """What the zoo says of one network."""

    title: str = setting(help="Network, data set and radius.")
    about: str = setting(help="How it was made, in one sentence.")
    data: str = setting(help="The data set, by name.")
    eps: str = setting(help="The radius it was trained and verified for, in raw pixels.")
    sha256: str = setting(help="Of the checkpoint.")
    commit: str = setting(help="Of lipgraft when it was trained and measured.")
    hardware: str = setting(help="What it was trained and measured on.")
    made: str = setting(help="The command that made it.")
    seed: int = setting(help="The seed of the training.")
    measured: Measured = setting(help="What was measured.")


def zoo_folder() -> Path:
    """Where the zoo is looked for."""
    return Path(os.environ.get("LIPGRAFT_ZOO") or "zoo").expanduser()


def zoo_names() -> list[str]:
    """The networks that are there."""
    return sorted(card.stem for card in zoo_folder().glob("*.yaml"))


def zoo_card(name: str) -> Card:
    """The card of a network, by its name with or without zoo/."""
    file = _member(name, ".yaml")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CheckpointError(f"{file} cannot be read: {' '.join(str(error).split())}.") from None
    return build(Card, content, where=str(file))


def zoo_checkpoint(name: str) -> Path:
    """The checkpoint of a network, after comparing it with its card."""
    file, card = _member(name, ".safetensors"), zoo_card(name)
    if not file.is_file():
        raise CheckpointError(f"{file} is missing; fetch it again.")
    if hashlib.sha256(file.read_bytes()).hexdigest() != card.sha256:
        raise CheckpointError(f"{file} is not the file that its card describes; fetch it again.")
    return file


def _member(name: str, suffix: str) -> Path:
    short, names = name.removeprefix(PREFIX), zoo_names()
    if not names:
        raise CheckpointError(
            f"there is no model zoo in {zoo_folder()}; run in a clone of the repository, or set LIPGRAFT_ZOO to its "
            "zoo folder."
        )
    if short not in names:
        raise CheckpointError(unknown_name("network of the zoo", short, names))
    return zoo_folder() / f"{short}{suffix}"
