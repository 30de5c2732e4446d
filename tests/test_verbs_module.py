"""What the verbs do with the module they are given: nothing that stays, and nothing that its own answers contradict."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lipgraft as lg
from lipgraft.errors import UnsupportedOperationError
from lipgraft.network import Builder, Ref, evaluated, full_precision, lowers_module, trace
from lipgraft.sensitivity import LipschitzSettings
from lipgraft.verification import AttackSettings, Limits, VerifySettings, verify_stream

SHAPE = (1, 4, 4)
EPS = 0.2
QUICK = VerifySettings(
    limits=Limits(max_subproblems=64), attack=AttackSettings(steps=5, restarts=1, search_every=1, search_steps=2)
)
FEW = LipschitzSettings(samples=2, steps=1)
Verb = Callable[[nn.Module, Tensor, Tensor], Any]


def apply_masks(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    masks = lg.grafting.select(model, lg.grafting.score(model, x, EPS), ratio=0.5)
    return lg.grafting.apply(model, masks, input_shape=SHAPE)


VERBS: dict[str, Verb] = {
    "bound": lambda model, x, y: lg.bound(model, lg.Box.linf(x, EPS)),
    "bound alpha-crown": lambda model, x, y: lg.bound(model, lg.Box.linf(x, EPS), "alpha-crown"),
    "attack": lambda model, x, y: lg.attack(model, x, y, EPS, steps=3),
    "verify": lambda model, x, y: lg.verify(model, x, y, EPS, settings=QUICK),
    "verify without attack": lambda model, x, y: lg.verify(
        model,
        x,
        y,
        EPS,
        settings=VerifySettings(limits=Limits(max_subproblems=64), attack=AttackSettings(restarts=0, search_every=1)),
    ),
    "lipschitz jacobian": lambda model, x, y: lg.lipschitz(model, x, EPS),
    "lipschitz output-width": lambda model, x, y: lg.lipschitz(model, x, EPS, "output-width"),
    "lipschitz sampled": lambda model, x, y: lg.lipschitz(model, x, EPS, "sampled", settings=FEW),
    "score": lambda model, x, y: lg.grafting.score(model, x, EPS, y=y),
    "graft": apply_masks,
    "trace": lambda model, x, y: trace(model, SHAPE),
}
every_verb = pytest.mark.parametrize("verb", VERBS)


class Keeping(nn.Module):
    """Keeps what it has seen, as an attribute and as a buffer that it replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1))
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.last = x
        return x


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Flatten(),
            Keeping(),
            nn.Linear(16, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
        )
        with torch.no_grad():
            model[1].running_mean.uniform_(-0.3, 0.3)
            model[1].running_var.uniform_(0.5, 2.0)
    return model


def images(count: int = 3, seed: int = 1) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def classes(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x.clone()).argmax(1)


def flags() -> list[Any]:
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.mkldnn.matmul)
    return [
        *(switch.fp32_precision for switch in switches),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
    ]


@every_verb
def test_no_verb_changes_the_module_or_the_process(verb: str) -> None:
    model = network().eval()
    x = images()
    y = classes(model, x)
    model.train()
    model[1].eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    model[8].bias.requires_grad_(False)
    handle = model[0].weight.register_hook(lambda grad: grad)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    own = [dict(vars(module)) for module in model.modules()]
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    buffers = [id(buffer) for buffer in model.buffers()]
    before, generator = flags(), torch.get_rng_state()
    pixels = x.clone()
    VERBS[verb](model, x, y)
    assert flags() == before
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(x, pixels)
    assert [module.training for module in model.modules()] == [then["training"] for then in own]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [dict(vars(module)) for module in model.modules()] == own
    assert [id(buffer) for buffer in model.buffers()] == buffers
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert all(parameter.grad is None for parameter in list(model.parameters())[1:])
    handle.remove()


@every_verb
def test_a_module_in_training_mode_gets_the_answers_of_evaluation_mode(verb: str) -> None:
    model = network().eval()
    x = images()
    y = classes(model, x)
    expected, got = VERBS[verb](model, x, y), VERBS[verb](model.train(), x, y)
    if isinstance(expected, list):
        assert [v.status for v in got] == [v.status for v in expected]
    elif isinstance(expected, Tensor):
        assert torch.equal(got, expected)


# --- precision


@pytest.mark.sampled(4)
@every_verb
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_modules_are_computed_with_in_single_precision(verb: str, dtype: torch.dtype) -> None:
    half = network().eval().to(dtype)
    copy = network().eval().to(dtype).float()
    x = images().to(dtype)
    y = classes(copy, x.float())
    expected, got = VERBS[verb](copy, x.float(), y), VERBS[verb](half, x, y)
    if isinstance(expected, list):
        assert [v.status for v in got] == [v.status for v in expected]
    elif isinstance(expected, Tensor):
        assert got.dtype == torch.float32
        assert torch.equal(got, expected)
    elif verb.startswith("bound"):
        assert torch.equal(got.lower, expected.lower)
    assert all(parameter.dtype == dtype for parameter in half.parameters())


def test_a_half_precision_module_that_cannot_be_copied_is_refused_with_a_sentence() -> None:
    model = network().eval().half()
    model[5].lock = threading.Lock()
    with pytest.raises(UnsupportedOperationError, match=r"cannot be copied .* Convert it with \.float\(\) before"):
        lg.bound(model, lg.Box.linf(images(), EPS))
    assert lg.bound(model.float(), lg.Box.linf(images(), EPS)).lower.shape == (3, 3)


def test_nothing_is_verified_that_half_precision_rounds_away() -> None:
    """The margin changes its sign in the box; in bfloat16 its change is lost beside the biases."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).to(torch.bfloat16)
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[0.05] * 4, [-0.05] * 4]))
        model[1].bias.copy_(torch.tensor([40.0, 40.0]))
    x = torch.full((1, 4), 0.5)
    (verdict,) = lg.verify(model, x, torch.tensor([0]), 0.5)
    assert verdict.status != "verified"
    box = lg.Box.linf(x.to(torch.bfloat16), 0.5)
    margin = lg.bound(model, box, C=torch.tensor([[1.0, -1.0]])).lower
    assert margin.dtype == torch.float32
    assert float(margin) <= 1e-6


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "trace"])
def test_a_module_of_two_precisions_is_computed_with_in_the_finer_one(verb: str) -> None:
    model = network().eval()
    exact = network().eval().double()
    model[6].double()
    x = images()
    y = classes(exact, x.double())
    expected, got = VERBS[verb](exact, x, y), VERBS[verb](model, x, y)
    if isinstance(expected, list):
        assert [v.status for v in got] == [v.status for v in expected]


# --- modules that write into their input


class Shifting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        return self.fc(x.flatten(1))


def overwriting(kind: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if kind == "x -= 0.5":
            return Shifting()
        return nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("kind", ["x -= 0.5", "leading ReLU"])
def test_a_module_that_overwrites_its_input_is_given_a_copy(kind: str) -> None:
    model = overwriting(kind)
    x = images(12)
    before, y = x.clone(), classes(model, x)
    verdicts = lg.verify(model, x, y, 0.1, settings=QUICK)
    assert torch.equal(x, before)
    assert {v.status for v in verdicts} == {"verified", "falsified"}
    for image, verdict in zip(x, verdicts, strict=True):
        if verdict.counterexample is not None:
            assert float((verdict.counterexample - image).abs().max()) <= 0.1 + 1e-6
            assert 0 <= float(verdict.counterexample.min()) <= float(verdict.counterexample.max()) <= 1
    found = lg.attack(model, x, y, 0.1, steps=10)
    assert torch.equal(x, before)
    assert float((found - x).abs().max()) <= 0.1 + 1e-6
    bounds = lg.bound(model, lg.Box.linf(x, 0.1))
    with torch.no_grad():
        logits = model(found.clone())
    assert bool(((bounds.lower - 1e-4 <= logits) & (logits <= bounds.upper + 1e-4)).all())
    assert bool((lg.lipschitz(model, x, 0.1, "sampled", settings=FEW) <= lg.lipschitz(model, x, 0.1) * 1.0001).all())


# --- what tracing does not see


class Turned(nn.Module):
    """The logits, but near grey images in reverse order."""

    def forward(self, x: Tensor, logits: Tensor) -> Tensor:
        near = (x.flatten(1) - 0.5).abs().amax(1, keepdim=True) < 0.01
        return torch.where(near, logits.flip(1), logits)


@lowers_module(Turned)
def wrong(build: Builder, module: Turned, x: Ref, logits: Ref) -> Ref:
    """Forgets the reverse order."""
    return logits


class Trigger(nn.Module):
    """Another function near grey images, which no hook and no call in the forward shows."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.turned = nn.Sequential(*layers), Turned()

    def forward(self, x: Tensor) -> Tensor:
        return self.turned(x, self.layers(x))


@pytest.mark.parametrize("verb", ["bound", "verify", "lipschitz jacobian", "lipschitz sampled"])
def test_a_function_that_differs_in_the_box_alone_is_refused(verb: str) -> None:
    model = Trigger(nn.Flatten(), nn.Linear(16, 3))
    trace(model, SHAPE)  # on its own inputs there is nothing to see
    with pytest.raises(UnsupportedOperationError, match="differs from the model"):
        VERBS[verb](model, torch.full((1, *SHAPE), 0.5), torch.tensor([0]))


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "attack"])
def test_no_verb_looks_past_a_hook(verb: str) -> None:
    model = network().eval()
    x = images()
    y = classes(model, x)
    model[7].register_forward_hook(
        lambda module, args, output: torch.where(output.sum(1, keepdim=True) > 1e3, -output, output)
    )
    with pytest.raises(UnsupportedOperationError, match="the layer '7' has forward hooks"):
        VERBS[verb](model, x, y)


# --- modes of the process


@pytest.mark.sampled(4)
@every_verb
@pytest.mark.parametrize("made_in", [False, True], ids=["module from outside", "module from inside"])
def test_every_verb_works_in_inference_mode(verb: str, made_in: bool) -> None:
    model = network().eval()
    x = images()
    y = classes(model, x)
    expected = VERBS[verb](model, x, y)
    with torch.inference_mode():
        if made_in:
            model = network().eval()
        got = VERBS[verb](model, images(), y.clone())
        assert torch.is_inference_mode_enabled()
    if isinstance(expected, list):
        assert [v.status for v in got] == [v.status for v in expected]
    elif isinstance(expected, Tensor):
        assert torch.equal(got, expected)
    elif verb.startswith("bound"):
        assert torch.equal(got.lower, expected.lower)


def test_two_interleaved_streams_leave_the_callers_flags_alone() -> None:
    model = network().eval()
    x = images(4)
    y = classes(model, x)
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    try:
        switch.fp32_precision = "tf32"
        first, second = (verify_stream(model, x, y, 1e-4, settings=QUICK) for _ in range(2))
        for _ in range(2):
            next(first)
            assert switch.fp32_precision == "tf32"
            next(second)
            assert switch.fp32_precision == "tf32"
        first.close()  # type: ignore[attr-defined]
        assert len(list(second)) == 2
        assert switch.fp32_precision == "tf32"
    finally:
        switch.fp32_precision = before


# --- threads


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_forked_while_another_thread_has_its_turn_has_one_of_its_own() -> None:
    model, x = nn.Linear(2, 2), torch.rand(1, 2)
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with evaluated(nn.Linear(2, 2)), full_precision():
            inside.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that waits for ever
        lg.bound(model, lg.Box.linf(x, 0.1))
        os._exit(0)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def at_once(*works: Callable[[], Any]) -> None:
    """Each on a thread of its own; the first error is raised."""
    errors: list[BaseException] = []

    def one(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_the_last_of_overlapping_blocks_sets_the_switches_back() -> None:
    switch = torch.backends.mkldnn.matmul
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    during: list[str] = []

    def first() -> None:
        with full_precision(), full_precision():
            first_is_in.set()
            second_is_in.wait()
        during.append(switch.fp32_precision)
        first_is_out.set()

    def failing() -> None:
        with full_precision():
            second_is_in.set()
            first_is_out.wait()
            raise KeyError

    def second() -> None:
        first_is_in.wait()
        with pytest.raises(KeyError):
            failing()
        during.append(switch.fp32_precision)

    before = switch.fp32_precision
    try:
        switch.fp32_precision = "bf16"
        at_once(first, second)
        assert during == ["ieee", "bf16"]
    finally:
        switch.fp32_precision = before


def test_threads_take_turns_with_a_module() -> None:
    model = network().train()
    layers = nn.Sequential(*model)  # another module of the same layers
    second_is_in, first_is_out = threading.Event(), threading.Event()

    def second() -> None:
        with evaluated(layers):
            second_is_in.set()
            first_is_out.wait()

    def first() -> None:
        with evaluated(model):
            thread = threading.Thread(target=second)
            thread.start()
            assert not second_is_in.wait(0.2)
        first_is_out.set()
        thread.join()

    at_once(first)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("shared", [True, False], ids=["one module", "a module each"])
def test_verbs_on_several_threads_answer_as_on_one(shared: bool) -> None:
    x = images()
    y = classes(network().eval(), x)
    expected = [verdict.status for verdict in lg.verify(network(), x, y, EPS, settings=QUICK)]
    models = [network()] * 3 if shared else [network() for _ in range(3)]
    state = {name: value.clone() for name, value in models[0].state_dict().items()}
    own = [dict(vars(module)) for module in models[0].modules()]
    before, called = flags(), nn.Module.__call__

    def work(model: nn.Module) -> None:
        for _ in range(3):
            assert [verdict.status for verdict in lg.verify(model, x, y, EPS, settings=QUICK)] == expected
            lg.attack(model, x, y, EPS, steps=3)

    at_once(*(lambda model=model: work(model) for model in models))  # type: ignore[misc]
    assert flags() == before
    assert nn.Module.__call__ is called
    assert [dict(vars(module)) for module in models[0].modules()] == own
    assert all(torch.equal(value, state[name]) for name, value in models[0].state_dict().items())


# --- modules that are hardly any


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_hidden_layer_without_neurons_leaves_a_constant() -> None:
    model = nn.Sequential(nn.Linear(4, 0), nn.ReLU(), nn.Linear(0, 3))
    with torch.no_grad():
        model[2].bias.copy_(torch.tensor([1.0, 3.0, 2.0]))
    x = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
    verdicts = lg.verify(model, x, torch.tensor([1, 1]), EPS, settings=QUICK)
    assert [verdict.status for verdict in verdicts] == ["verified", "verified"]
    assert torch.equal(lg.lipschitz(model, x, EPS), torch.zeros(2))
    assert torch.equal(lg.lipschitz(model, x, EPS, "sampled", settings=FEW), torch.zeros(2))


def test_the_identity_is_a_network() -> None:
    x = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    for model in (nn.Identity(), nn.Sequential(), nn.Dropout()):
        bounds = lg.bound(model, lg.Box.linf(x, 0.125))
        assert torch.equal(bounds.lower, x - 0.125)
        assert torch.equal(bounds.upper, x + 0.125)
        assert [v.status for v in lg.verify(model, x, torch.tensor([1]), 0.125, settings=QUICK)] == ["verified"]
        assert float(lg.lipschitz(model, x, 0.125)) == 1.0


# --- modules that cannot be bounded


def meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.fc(x.flatten(1)))


IMPOSSIBLE: dict[str, tuple[Callable[[], Any], str]] = {
    "meta device": (meta, "meta device, which holds no numbers"),
    "complex": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3, dtype=torch.complex64)), "complex weights"),
    "TorchScript": (lambda: torch.jit.trace(Scripted(), torch.rand(2, *SHAPE)), "TorchScript module"),
    "TorchScript inside": (
        lambda: nn.Sequential(nn.Flatten(), torch.jit.script(nn.Linear(16, 3))),
        "the layer '1' is a TorchScript module",
    ),
    "lazy": (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), "lazy layers"),
    "function": (lambda: torch.relu, "must be a torch.nn.Module"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", IMPOSSIBLE)
@pytest.mark.parametrize("verb", ["bound", "attack", "verify", "lipschitz jacobian", "score", "trace"])
def test_modules_without_numbers_or_forward_are_refused_with_a_sentence(verb: str, kind: str) -> None:
    make, words = IMPOSSIBLE[kind]
    with pytest.raises(UnsupportedOperationError, match=words):
        VERBS[verb](make(), images(), torch.zeros(3, dtype=torch.int64))
