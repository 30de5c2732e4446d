"""A whole run on a small scale: its files, its resumption, its refusals."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lipgraft import models
from lipgraft.cli import main
from lipgraft.data import images, load
from lipgraft.errors import CheckpointError, DataError, SettingsError
from lipgraft.report import RunResults, summary
from lipgraft.report.experiment import protocol
from lipgraft.runs import Recipe, certification, collect, load_recipe, report, resolve, run, stages
from lipgraft.runs.directory import RunDirectory
from lipgraft.runs.models import Workshop
from lipgraft.runs.pipeline import held_out_images
from lipgraft.verification.settings import flat

pytestmark = pytest.mark.xdist_group("run")  # one process makes the fixture, and runs all tests on it

Announce = Callable[[str, bool], None]


VERIFIER = {"limits": {"max_subproblems": 0}, "attack": {"steps": 5}, "optimise": {"refine": "none"}}

PLAIN = {"objective": "standard", "grad_align": 0.0}  # what a run leaves does not depend on it, and it is fast


def tiny(**changes: Any) -> Recipe:
    """The smallest run that has everything: a baseline, a grafted and fine-tuned model, one that is grafted alone."""
    mapping = {
        "name": "tiny",
        "data": "digits",
        "network": "digits-cnn",
        "eps": 0.08,
        "pretrain": {"preset": "pretrain-short", "epochs": 3, "batch": 64, "lr": 0.1, **PLAIN},
        "calibration": {"count": 20},
        "defaults": {
            "graft": {"ratio": 0.2},
            "finetune": {"preset": "finetune-short", "epochs": 2, "batch": 64, "lr": 0.03, **PLAIN},
        },
        "models": [
            {"name": "baseline", "title": "Baseline"},
            {"name": "ours", "graft": {}},
            {"name": "raw", "graft": {"criterion": "random", "ratio": 0.1}, "finetune": None},
        ],
        "attack": {"steps": 3, "count": 40},
        "certify": {"count": 12, "verifier": VERIFIER},
        "lipschitz": {"notions": ["output-width", "sampled"], "count": 2, "method": {"samples": 2, "steps": 1}},
        "examples": 4,
    }
    return resolve({**mapping, **changes})


def table(results: RunResults) -> Any:
    """Everything a run says, times aside."""
    content = summary(results)
    for model in content["models"]:
        del model["time"], model["seconds"], model["verified_after"]
    return content


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResults]:
    path = tmp_path_factory.mktemp("run") / "tiny"
    return path, run(tiny(), path)


def copied(path: Path, target: Path) -> Path:
    """A copy of a finished run, to be tampered with."""
    for file in path.rglob("*"):
        if file.is_file():
            (target / file.relative_to(path)).parent.mkdir(parents=True, exist_ok=True)
            (target / file.relative_to(path)).write_bytes(file.read_bytes())
    return target


def test_a_run_leaves_its_settings_checkpoints_metrics_results_and_report(finished: tuple[Path, RunResults]) -> None:
    path, results = finished
    config = yaml.safe_load((path / "config.yaml").read_text())
    assert set(config) == {"recipe", "versions", "hardware"}
    assert config["versions"]["torch"] == torch.__version__
    assert load_recipe(path / "config.yaml") == tiny()
    names = {file.stem for file in (path / "checkpoints").iterdir()}
    assert names == {"pretrained", "ours-grafted", "ours", "raw-grafted"}
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    epochs = [f"{r['model']} {r['epoch']}" for r in records]
    assert epochs == ["pretrained 1", "pretrained 2", "pretrained 3", "ours 1", "ours 2"]
    assert json.loads((path / "results.json").read_text()) == json.loads(json.dumps(summary(results)))
    assert (path / "report.html").read_text().startswith("<!doctype html>")
    assert not (path / "unfinished").exists()


def test_results_are_a_plain_database_that_agrees_with_the_table(finished: tuple[Path, RunResults]) -> None:
    path, results = finished
    connection = sqlite3.connect(path / "results.sqlite")
    counts = dict(connection.execute("SELECT model, count(*) FROM results GROUP BY model"))
    proved = dict(connection.execute("SELECT model, avg(status = 'verified') FROM results GROUP BY model"))
    connection.close()
    assert counts == {"baseline": 12, "ours": 12, "raw": 12}
    assert proved == pytest.approx({model.name: model.va for model in results.models})


def test_the_same_seed_gives_the_same_table(finished: tuple[Path, RunResults], tmp_path: Path) -> None:
    assert table(run(tiny(), tmp_path / "again")) == table(finished[1])


def test_a_finished_network_is_measured_as_it_is_and_nothing_is_trained_for_it(
    finished: tuple[Path, RunResults], tmp_path: Path
) -> None:
    path, before = finished
    place = tmp_path / "theirs.safetensors"
    place.write_bytes((path / "checkpoints" / "ours.safetensors").read_bytes())
    recipe = tiny(models=[{"name": "theirs", "network": str(place)}])
    heard: list[str] = []

    def measured() -> dict[str, Any]:
        (model,) = run(
            recipe, tmp_path / "run", announce=lambda what, done: None if done else heard.append(what)
        ).models
        return {key: getattr(model, key) for key in ("sa", "ra", "va", "unr", "lipschitz", "margins")}

    trained = before.models[1]
    assert measured() == {key: getattr(trained, key) for key in measured()}
    assert not any("training" in what or "grafting" in what for what in heard)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == ""
    heard.clear()
    measured()
    assert heard == []
    place.write_bytes((path / "checkpoints" / "pretrained.safetensors").read_bytes())  # another one of the same name
    assert measured()["lipschitz"] == before.models[0].lipschitz


@pytest.mark.long
def test_verdicts_for_other_labels_of_the_same_data_set_are_not_taken_over(
    finished: tuple[Path, RunResults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = copied(finished[0], tmp_path / "copy"), dict[str, bool]()
    run(tiny(), path, announce=lambda what, done: seen.update({what: done}))
    assert all(seen.values())
    data = load("digits")
    monkeypatch.setattr("lipgraft.data.load", lambda *_, **__: replace(data, y_test=(data.y_test + 1) % 10))
    again = run(tiny(), path, announce=lambda what, done: seen.update({what: done}))
    assert not seen["Baseline: certifying 12 images"]
    assert not seen["Baseline: accuracy, clean and attacked"]
    assert again.models[0].va == 0


def test_another_seed_gives_another_network(finished: tuple[Path, RunResults], tmp_path: Path) -> None:
    run(tiny(seed=1, models=[{"name": "baseline"}], pretrain={"epochs": 0}), tmp_path / "other")
    one, other = (models.load(p / "checkpoints/pretrained.safetensors") for p in (finished[0], tmp_path / "other"))
    assert models.fingerprint(one) != models.fingerprint(other)


def test_measures_by_layer_add_up_to_those_of_the_verifier(finished: tuple[Path, RunResults]) -> None:
    for model in finished[1].models:
        neurons = sum(layer.neurons for layer in model.layers)
        assert sum(layer.unr * layer.neurons for layer in model.layers) / neurons == pytest.approx(model.unr, abs=1e-6)
        assert {image.status for image in model.images} <= {"verified", "falsified", "unknown"}
    baseline, ours, raw = finished[1].models
    assert not baseline.grafted
    for model, ratio in ((ours, 0.2), (raw, 0.1)):
        grafted = sum(layer.grafted for layer in model.layers)
        assert grafted == round(ratio * sum(layer.neurons for layer in model.layers))
    assert [layer.unr for layer in raw.layers] == [layer.unr_grafted for layer in raw.layers]  # never fine-tuned


def test_the_verifier_verifies_every_image_whose_crown_margin_is_positive(finished: tuple[Path, RunResults]) -> None:
    for model in finished[1].models:
        right = [image for image in model.images if image.method != "misclassified"]
        assert len(model.margins) == len(right)
        for image, margin in zip(right, model.margins, strict=True):
            assert margin <= 0 or image.status == "verified"


def test_counterexamples_in_the_report_are_real(finished: tuple[Path, RunResults]) -> None:
    path, results = finished
    data = load("digits")
    networks = {name: models.load(path / f"checkpoints/{name}.safetensors") for name in ("pretrained", "ours")}
    networks |= {"baseline": networks["pretrained"], "raw": models.load(path / "checkpoints/raw-grafted.safetensors")}
    assert len(results.examples) == 4
    shown = 0
    for example in results.examples:
        clean = images(data.x_test[[example.index]])[0].permute(1, 2, 0)
        assert torch.equal(torch.from_numpy(example.image), clean)
        for verdict in example.verdicts:
            assert (verdict.adversarial is not None) == (verdict.status == "falsified")
            if verdict.adversarial is not None:
                shown += 1
                point = torch.from_numpy(verdict.adversarial)
                assert float((point - clean).abs().max()) <= 0.08 + 1e-6
                assert 0 <= float(point.min()) <= float(point.max()) <= 1
                taken_for = int(networks[verdict.model](point.permute(2, 0, 1)[None]).argmax())
                assert data.classes[taken_for] == verdict.taken_for != example.label
    assert shown > 0


def test_a_finished_run_is_not_done_again(finished: tuple[Path, RunResults]) -> None:
    path, results = finished
    before = {file: file.stat().st_mtime_ns for file in (path / "checkpoints").iterdir()}
    heard: list[bool] = []
    assert table(run(tiny(), path, announce=lambda what, done: heard.append(done))) == table(results)
    assert len(heard) > 10
    assert all(heard)
    assert {file: file.stat().st_mtime_ns for file in (path / "checkpoints").iterdir()} == before


def test_a_run_begun_before_the_verifiers_settings_had_groups_goes_on(
    finished: tuple[Path, RunResults], tmp_path: Path
) -> None:
    path = copied(finished[0], tmp_path / "copy")
    config = yaml.safe_load((path / "config.yaml").read_text())
    assert config["recipe"]["certify"]["verifier"]["attack"]["steps"] == 5
    config["recipe"]["certify"]["verifier"] = flat(tiny().certify.verifier)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    heard: list[bool] = []
    assert table(run(tiny(), path, announce=lambda what, done: heard.append(done))) == table(finished[1])
    assert all(heard)
    assert load_recipe(path / "config.yaml") == tiny()
    other = tiny(certify={"count": 12, "verifier": {**VERIFIER, "attack": {"steps": 6}}})
    with pytest.raises(SettingsError, match=r"certify\.verifier\.attack\.steps = 5, not 6"):
        run(other, path)


def test_a_run_begun_before_the_choice_of_images_goes_on(finished: tuple[Path, RunResults], tmp_path: Path) -> None:
    path = copied(finished[0], tmp_path / "copy")
    config = yaml.safe_load((path / "config.yaml").read_text())
    del config["recipe"]["measured_on"], config["recipe"]["certify"]["start"]
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    heard: list[bool] = []
    assert table(run(tiny(), path, announce=lambda what, done: heard.append(done))) == table(finished[1])
    assert all(heard)
    with pytest.raises(SettingsError, match="measured_on = test, not held-out"):
        run(tiny(measured_on="held-out"), path)


def test_measured_are_the_images_that_no_training_sees() -> None:
    data, recipe = load("digits"), tiny()
    count = len(data.x_train)

    def first(pretrain: int | None, finetune: int | None) -> int:
        """The position of the first measured image among the training images."""
        trained = [
            replace(m, finetune=m.finetune and replace(m.finetune, held_out=finetune, select="last"))
            for m in recipe.models
        ]
        pretrained = replace(recipe.pretrain, held_out=pretrain, select="last")
        measured = held_out_images(replace(recipe, pretrain=pretrained, models=tuple(trained)), data)
        assert torch.equal(measured.x_test, data.x_train[count - len(measured.x_test) :])
        assert measured.val_size == data.val_size
        return count - len(measured.x_test)

    assert first(None, None) == count - data.val_size
    assert first(20, None) == first(None, 20) == first(30, 20) == count - 20
    assert first(count // 2, None) == count - data.val_size  # lines are fitted to what the data set does not hold out
    with pytest.raises(DataError, match="nothing to measure on"):
        first(0, None)


@pytest.mark.long
def test_held_out_images_are_measured_without_a_look_at_the_test_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load("digits")
    wrong = replace(data, x_test=torch.zeros_like(data.x_test), y_test=(data.y_test + 1) % 10)
    monkeypatch.setattr("lipgraft.data.load", lambda *_, **__: wrong)
    shared, seen = tmp_path / "shared", dict[str, bool]()
    ours = tiny().models[1:2]
    held = run(replace(tiny(measured_on="held-out"), models=ours), tmp_path / "held", shared=shared)
    _, chosen = data.split()
    network = models.load(tmp_path / "held" / "checkpoints" / "ours.safetensors", torch.device("cpu")).eval()
    x, y = images(data.x_train[chosen[:40]]), data.y_train[chosen[:40]]
    with torch.no_grad():
        right = float((network(x).argmax(1) == y).float().mean())
    assert held.models[0].sa == pytest.approx(right)
    assert [image.label for image in held.models[0].images] == y[:12].tolist()
    assert protocol(held)["measured on"] == "held-out training images"
    monkeypatch.undo()
    tested = replace(tiny(), models=ours)
    run(tested, tmp_path / "test", shared=shared, announce=lambda what, done: seen.update({what: done}))
    assert seen["ours: fine-tuning, 2 epochs"]  # the network that was looked at is the one that is tested
    assert not seen["ours: certifying 12 images"]


@pytest.mark.long
def test_the_second_dozen_is_certified_as_in_a_run_of_two_dozen(
    finished: tuple[Path, RunResults], tmp_path: Path
) -> None:
    path = copied(finished[0], tmp_path / "whole")
    config = yaml.safe_load((path / "config.yaml").read_text())
    for name, certify in (("whole", {"count": 24}), ("second", {"count": 12, "start": 12})):
        target = path if name == "whole" else copied(path, tmp_path / name)
        config["recipe"]["certify"].update({"start": 0, **certify})
        (target / "config.yaml").write_text(yaml.safe_dump(config))
    whole = run(tiny(certify={"count": 24, "verifier": VERIFIER}), path)
    second = run(tiny(certify={"count": 12, "start": 12, "verifier": VERIFIER}), tmp_path / "second")
    assert protocol(second)["first of them"] == 12
    for all_images, some in zip(whole.models, second.models, strict=True):
        statuses = [(image.index, image.label, image.status) for image in all_images.images]
        assert [(image.index, image.label, image.status) for image in some.images] == statuses[12:]
    lengths = [len(model.margins) for results in (finished[1], second, whole) for model in results.models]
    assert [a + b for a, b in zip(lengths[:3], lengths[3:6], strict=True)] == lengths[6:]


def test_what_is_missing_is_made_again_and_nothing_else(finished: tuple[Path, RunResults], tmp_path: Path) -> None:
    path = copied(finished[0], tmp_path / "copy")
    (path / "checkpoints/ours.safetensors").unlink()
    (path / "stages/raw.accuracy.json").unlink()
    redone: list[str] = []
    again = run(tiny(), path, announce=lambda what, done: None if done else redone.append(what))
    assert [what.partition(":")[0] for what in redone] == ["ours", "raw"]
    assert table(again) == table(finished[1])


@pytest.mark.parametrize("stage", ["ours: fine-tuning", "ours: certifying"])
def test_an_interrupted_run_goes_on_to_the_same_table(
    stage: str, finished: tuple[Path, RunResults], tmp_path: Path
) -> None:
    path = tmp_path / "cut"
    finished_before: list[str] = []

    def interrupt(what: str, done: bool) -> None:
        if what.startswith(stage):
            raise KeyboardInterrupt
        finished_before.append(what)

    with pytest.raises(KeyboardInterrupt):
        run(tiny(), path, announce=interrupt)
    with pytest.raises(SettingsError, match="not finished"):
        collect(path)
    skipped: list[str] = []
    results = run(tiny(), path, announce=lambda what, done: skipped.append(what) if done else None)
    assert skipped == finished_before
    assert table(results) == table(finished[1])


def test_verdicts_survive_an_interruption_before_the_stage_ends(
    finished: tuple[Path, RunResults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(finished[0], tmp_path / "copy")
    (path / "stages/ours.certify.json").unlink()
    (path / "results.sqlite").unlink()
    for name in ("baseline", "raw"):
        (path / f"stages/{name}.certify.json").unlink()

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stages, "write_model", cut)
        with pytest.raises(KeyboardInterrupt):
            run(tiny(), path)
    assert [place.stem for place in (path / "unfinished").iterdir()] == ["baseline.certify"]
    monkeypatch.setattr(certification, "verify_stream", _only("baseline is done", allowed=2))
    assert table(run(tiny(), path)) == table(finished[1])


def _only(reason: str, allowed: int) -> Any:
    """The verifier, which may be called so many times: for the models whose images are not in a store yet."""
    from lipgraft.verification import verify_stream

    calls = iter(range(allowed))

    def counted(*args: Any, **kwargs: Any) -> Any:
        assert next(calls, None) is not None, reason
        return verify_stream(*args, **kwargs)

    return counted


def test_another_configuration_in_the_same_directory_is_refused(finished: tuple[Path, RunResults]) -> None:
    with pytest.raises(SettingsError, match=r"eps = 0\.08, not 0\.05; give another --out"):
        run(tiny(eps=0.05), finished[0])
    with pytest.raises(SettingsError, match=r"seed = 0, not 3"):
        run(tiny(seed=3), finished[0])
    recipe = tiny()
    others = (recipe.models[0], replace(recipe.models[1], title="Theirs"), recipe.models[2])
    with pytest.raises(SettingsError, match=r"models\[1\]\.title = ours, not Theirs"):
        run(replace(recipe, models=others), finished[0])


def test_a_damaged_checkpoint_is_an_error_not_a_silent_rerun(finished: tuple[Path, RunResults], tmp_path: Path) -> None:
    path = copied(finished[0], tmp_path / "copy")
    file = path / "checkpoints/ours.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"truncated.* Or delete it"):
        run(tiny(), path)


def halved(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("damage", [halved, Path.unlink])
def test_damaged_and_missing_files_are_made_again(
    damage: Callable[[Path], None], finished: tuple[Path, RunResults], tmp_path: Path
) -> None:
    path = copied(finished[0], tmp_path / "copy")
    for name in ("stages/raw.accuracy.json", "stages/ours.certify.json", "examples.npz"):
        damage(path / name)
    with pytest.raises(SettingsError, match=r"is not finished|no finished model"):
        collect(path)
    redone: list[str] = []
    again = run(tiny(), path, announce=lambda what, done: None if done else redone.append(what))
    assert [what.partition(":")[0] for what in redone] == ["ours", "raw", "images to look at"]
    assert table(again) == table(finished[1])


def test_a_report_says_how_the_images_to_look_at_come_back(finished: tuple[Path, RunResults], tmp_path: Path) -> None:
    path = copied(finished[0], tmp_path / "copy")
    halved(path / "examples.npz")
    with pytest.raises(SettingsError, match=r"examples\.npz is missing or damaged; run the recipe again"):
        report(path)


def test_lost_verdicts_are_found_again(finished: tuple[Path, RunResults], tmp_path: Path) -> None:
    path = copied(finished[0], tmp_path / "copy")
    (path / "results.sqlite").unlink()
    assert table(run(tiny(), path)) == table(finished[1])


@pytest.mark.parametrize("length", [0, 0.3, 0.6])
def test_a_truncated_config_is_called_damaged(length: float, finished: tuple[Path, RunResults], tmp_path: Path) -> None:
    path = copied(finished[0], tmp_path / "copy")
    content = (path / "config.yaml").read_bytes()
    (path / "config.yaml").write_bytes(content[: int(length * len(content))])
    with pytest.raises(SettingsError, match="or delete it and start the run again") as told:
        run(tiny(), path)
    assert "holds a run with" not in str(told.value)


def test_a_flipped_bit_in_a_checkpoint_is_told_before_it_is_used(
    finished: tuple[Path, RunResults], tmp_path: Path
) -> None:
    path = copied(finished[0], tmp_path / "copy")
    file = path / "checkpoints/pretrained.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"pretrained\.safetensors is not as it was written.* or delete it"):
        run(tiny(), path)
    file.unlink()
    assert table(run(tiny(), path)) == table(finished[1])


def test_a_setting_that_is_left_out_now_is_told_as_such(tmp_path: Path) -> None:
    RunDirectory(tmp_path).begin(tiny(threads=1), torch.device("cpu"))
    with pytest.raises(SettingsError, match="was started with threads = 1, which is not given now"):
        RunDirectory(tmp_path).begin(tiny(), torch.device("cpu"))


def test_a_report_can_be_built_again_from_the_files_alone(finished: tuple[Path, RunResults], tmp_path: Path) -> None:
    path = copied(finished[0], tmp_path / "copy")
    page = (path / "report.html").read_text()
    (path / "report.html").unlink()
    report(path)
    assert (path / "report.html").read_text() == page


def test_a_directory_that_is_no_run_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not a run directory"):
        report(tmp_path)
    (tmp_path / "config.yaml").write_text("preset: pretrain\n")
    with pytest.raises(SettingsError, match="is not that of"):
        report(tmp_path)


def test_a_run_of_the_verifier_alone_has_a_report_too(finished: tuple[Path, RunResults], tmp_path: Path) -> None:
    line = ["verify", str(finished[0] / "checkpoints/ours.safetensors"), "--data", "digits", "--eps", "0.08"]
    options = ["--count", "6", "--set", "limits.max_subproblems=0", "--set", "attack.steps=5"]
    options += ["--set", "optimise.refine=none"]
    assert main([*line, *options, "--out", str(tmp_path / "alone"), "--device", "cpu"]) == 0
    results = report(tmp_path / "alone")
    assert results.counts == {"certified": 6}
    assert [i.status for i in results.models[0].images] == [i.status for i in finished[1].models[1].images[:6]]
    assert "ours on digits" in (tmp_path / "alone/report.html").read_text()
    with pytest.raises(SettingsError, match="another command"):
        run(tiny(), tmp_path / "alone")


def test_a_run_without_lipschitz_constants_counts_no_images_for_them(tmp_path: Path) -> None:
    results = run(tiny(lipschitz={"notions": []}, models=[{"name": "baseline"}]), tmp_path / "run")
    assert dict(results.models[0].lipschitz) == {}
    assert set(results.counts) == {"tested", "certified"}


def test_stages_are_redone_when_their_inputs_change(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.stage("a", "count", {"x": (1, 2)}, lambda _: {"value": 1})["value"] == 1
    assert directory.stage("a", "count", {"x": [1, 2]}, lambda _: {"value": 2})["value"] == 1
    assert directory.stage("a", "count", {"x": [1, 3]}, lambda _: {"value": 3})["value"] == 3
    assert directory.result("a")["value"] == 3


@pytest.mark.parametrize("batchnorm", [None, True, False])
def test_a_recipe_says_whether_its_network_is_trained_with_batchnorm(batchnorm: bool | None, tmp_path: Path) -> None:
    recipe = tiny(network="cnn5", batchnorm=batchnorm, pretrain={"preset": "ibp", "epochs": 0})
    shop = Workshop(recipe, RunDirectory(tmp_path), load("digits"), torch.device("cpu"))
    start = models.build("cnn5", "digits", batchnorm=batchnorm, seed=recipe.seed)
    expected = models.fold_batchnorm(start).state_dict()
    found = shop.pretrained.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert start.spec.batchnorm == (batchnorm is not False)
