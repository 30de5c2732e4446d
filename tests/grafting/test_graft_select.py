"""Criteria: which neurons are chosen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lipgraft.errors import SettingsError, UnsupportedOperationError
from lipgraft.grafting import CRITERIA, LayerScores, Scores, select
from lipgraft.grafting.criteria.ranking import dense_rank, min_max, top
from lipgraft.network import trace

BACKWARD = ("weighted-interval", "lowest-weighted-interval", "average-sensitivity", "gain-aware")


def scores_of(layers: dict[str, dict[str, Tensor]], count: int = 100, input_shape: tuple[int, ...] = (3,)) -> Scores:
    """Scores with the given fields; what is not given is 1 everywhere."""

    def layer(fields: dict[str, Tensor]) -> LayerScores:
        names = LayerScores.__dataclass_fields__
        return LayerScores(**{name: fields.get(name, torch.ones(fields["s_u"].shape)) for name in names})

    return Scores({name: layer(f) for name, f in layers.items()}, count, input_shape)


def worked_example() -> tuple[nn.Sequential, Scores]:
    """Layers "1" (5 neurons), "3" (5) and "5" (10): N = 20. The selection is worked out by hand in the tests."""
    model = nn.Sequential(
        nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 2)
    )
    with torch.no_grad():
        model[4].weight.zero_()
        model[4].weight[3, 0] = 1.0  # |w| from neuron 0 of "3" to neuron 3 of "5"
        model[4].weight[4, 1] = 0.5
        model[4].weight[0, 1] = 100.0  # to a neuron that is not selected: must not count
        model[4].weight[5, 3] = -3.0
        model[4].weight[6, 4] = 9.0
        model[2].weight.zero_()
        model[2].weight[0, 0] = 1.0
        model[2].weight[1, 1] = 0.5
        model[2].weight[4, 1] = 50.0  # to a neuron that is not selected
        model[2].weight[3, 2] = -2.0
    scores = scores_of(
        {
            "1": {"s_u": torch.tensor([39, 37, 35, 5, 2]), "width_max": torch.tensor([2.0, 3.0, 4.0, 50.0, 1.0])},
            "3": {"s_u": torch.tensor([40, 38, 10, 36, 1]), "width_max": torch.tensor([2.0, 3.0, 1.0, 1.0, 10.0])},
            "5": {"s_u": torch.tensor([50, 51, 52, 53, 54, 55, 56, 57, 58, 59])},
        }
    )
    return model, scores


def chosen(masks: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: mask.nonzero().flatten().tolist() for name, mask in masks.items()}


def test_algorithm_1_gives_the_mask_worked_out_by_hand():
    """R = 12. Pool (16 most unstable of 20): all of "5", {0, 1, 3} of "3", {0, 1, 2} of "1".

    "5" lies wholly in the pool, so 70 % of it stay: the 7 most unstable, 3 to 9. That leaves 5; by s_u "3" gets 3
    (40, 38, 36) and "1" gets 2 (39, 37). share 0.2 of 5 is one neuron by s_wi:
    "3": s_wi = 1*2, 0.5*3 (the weight 100 leads to neuron 0 of "5", not selected), 3*1 for 0, 1, 3 -> 3; then 0, 1.
    "1": given {0, 1, 3} of "3": 1*2, 0.5*3 (50 leads to 4), 2*4 for 0, 1, 2 -> 2; then the most unstable, 0.
    """
    model, scores = worked_example()
    masks = select(model, scores, "weighted-interval", 0.6, share=0.2)
    assert chosen(masks) == {"1": [0, 2], "3": [0, 1, 3], "5": [3, 4, 5, 6, 7, 8, 9]}


def test_the_share_by_influence_is_of_the_layer_not_of_its_part_of_the_pool():
    """Layer "1" has 5 neurons, 3 of them in the pool: share 0.4 is two neurons by s_wi (of the pool it would be one).

    s_wi of 0, 1, 2 is 1*2, 0.5*5, 2*4: the two are 2 and 1. With one by s_wi, the second is the most unstable, 0.
    """
    model, scores = worked_example()
    scores.layers["1"].width_max[1] = 5.0
    assert chosen(select(model, scores, "weighted-interval", 0.6, share=0.4))["1"] == [1, 2]


def test_lowest_weighted_interval_takes_the_other_end_of_the_same_pool():
    """As above, with the smallest s_wi: 1 for layer "3" (1.5), then 0 and 3; for layer "1" neuron 1 (1.5), then 0."""
    model, scores = worked_example()
    masks = select(model, scores, "lowest-weighted-interval", 0.6, share=0.2)
    assert chosen(masks) == {"1": [0, 1], "3": [0, 1, 3], "5": [3, 4, 5, 6, 7, 8, 9]}


def test_without_the_influential_share_the_selection_is_by_instability():
    model, scores = worked_example()
    masks = select(model, scores, "weighted-interval", 0.6, share=0.0)
    assert chosen(masks) == {"1": [0, 1], "3": [0, 1, 3], "5": [3, 4, 5, 6, 7, 8, 9]}
    masks = select(model, scores, "weighted-interval", 0.6, share=0.0, last_layer="quota")
    assert chosen(masks) == chosen(select(model, scores, "instability", 0.6))


@pytest.mark.parametrize(
    ("rule", "cap", "unstable_everywhere", "expected"),
    [
        ("pool", 0.7, True, 7),  # all of the layer in the pool: 70 % stay
        ("pool", 0.7, False, 9),  # 9 of 10 in the pool: all 9 stay
        ("cap", 0.7, False, 7),
        ("cap", 1.0, True, 10),
        ("cap", 0.0, True, 0),
        ("quota", 0.7, True, 10),  # the ranking by s_u over the network alone decides
    ],
)
def test_the_rule_for_the_last_hidden_layer(rule, cap, unstable_everywhere, expected):
    model, scores = worked_example()
    if not unstable_everywhere:
        scores.layers["5"].s_u[0] = 0
    masks = select(model, scores, "weighted-interval", 0.6, last_layer=rule, last_cap=cap)
    assert int(masks["5"].sum()) == expected
    others = sum(int(mask.sum()) for mask in masks.values()) - expected
    assert others == min(12 - expected, 10)  # what the rule leaves over goes to the other layers, as far as they hold


def test_the_budget_is_kept_when_the_last_layer_alone_would_exceed_it():
    model, scores = worked_example()
    masks = select(model, scores, "weighted-interval", 0.2)
    assert chosen(masks) == {"1": [], "3": [], "5": [6, 7, 8, 9]}


def test_the_range_over_all_images_can_replace_the_width():
    model, scores = worked_example()
    scores.layers["1"].upper_max.copy_(torch.tensor([100.0, 0, 0, 0, 0]))
    masks = select(model, scores, "weighted-interval", 0.6, share=0.2, interval="range")
    assert chosen(masks)["1"] == [0, 1]  # 0 by its range, then the most unstable of the rest


def test_gain_aware_prefers_neurons_whose_graft_narrows_the_bound():
    model, scores = worked_example()
    scores.layers["1"].gain_max.copy_(torch.tensor([1.0, 5.0, -1.0, 9.0, 9.0]))
    masks = select(model, scores, "gain-aware", 0.6, share=0.2)
    assert chosen(masks)["1"] == [0, 1]  # 0.5 * 5 beats 1 * 1; neuron 2, widened by its graft, comes last


def test_average_sensitivity_replaces_maxima_by_means():
    model, scores = worked_example()
    with torch.no_grad():
        model[2].weight[:2, 0] = 1.5  # neuron 0 now reaches two selected neurons: mean (1.5 + 1.5) / 3, maximum 1.5
    scores.layers["1"].width_max.copy_(torch.ones(5))
    scores.layers["1"].width_mean.copy_(torch.tensor([1.0, 1.0, 1.2, 1.0, 1.0]))
    # neuron 0: mean 1.0, maximum 1.5; neuron 2: mean 2/3, maximum 2
    assert chosen(select(model, scores, "weighted-interval", 0.6, share=0.2))["1"] == [0, 2]
    assert chosen(select(model, scores, "average-sensitivity", 0.6, share=0.2))["1"] == [0, 1]
    assert chosen(select(model, scores, "average-sensitivity", 0.6, share=0.2, mean_over="images"))["1"] == [0, 2]


def test_lg_takes_equal_portions_with_falling_weight_of_instability():
    """8 neurons, ratio 0.5, two portions of 2. r_u = s_u / 7, r_s = rank of |z| / 7.

    gamma 2: 2 r_u - r_s is largest for 7 (14/7 - 3/7) and 6 (12/7 - 2/7); gamma 0: then the least significant, 0 and 1.
    """
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    fields = {"s_u": torch.arange(8), "magnitude": torch.tensor([0.0, 1, 5, 6, 7, 8, 2, 3])}
    masks = select(model, scores_of({"1": fields}), "lg", 0.5, gammas=(2.0, 0.0))
    assert chosen(masks) == {"1": [0, 1, 6, 7]}


def test_magnitude_and_gradient_choose_the_least_significant():
    model, scores = worked_example()
    scores.layers["1"].magnitude.copy_(torch.tensor([0.1, 2, 2, 2, 2]))
    scores.layers["3"].gradient.copy_(torch.tensor([2.0, 2, 0.1, 2, 2]))
    assert chosen(select(model, scores, "magnitude", 0.05)) == {"1": [0], "3": [], "5": []}
    assert chosen(select(model, scores, "gradient", 0.05)) == {"1": [], "3": [2], "5": []}


def test_random_depends_on_the_seed_alone():
    model, scores = worked_example()
    draws = [chosen(select(model, scores, "random", 0.5, seed=seed)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_layer_scope_grafts_the_same_share_of_every_layer():
    model, scores = worked_example()
    masks = select(model, scores, "instability", 0.4, scope="layer")
    assert {name: int(mask.sum()) for name, mask in masks.items()} == {"1": 2, "3": 2, "5": 4}


def test_ties_go_to_the_larger_mean_width_then_to_the_lower_index():
    model, scores = worked_example()
    for layer in scores.layers.values():
        layer.s_u.fill_(7)
    scores.layers["3"].width_mean.copy_(torch.tensor([1.0, 1, 2, 1, 2]))
    assert chosen(select(model, scores, "instability", 0.1)) == {"1": [], "3": [2, 4], "5": []}
    assert chosen(select(model, scores, "instability", 0.25)) == {"1": [0, 1, 2], "3": [2, 4], "5": []}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_top_orders_like_python_sort(pairs, count):
    first, second = (torch.tensor([p[i] for p in pairs]) for i in (0, 1))
    expected = sorted(range(len(pairs)), key=lambda i: (-pairs[i][0], -pairs[i][1], i))[:count]
    assert set(top(count, first, second).nonzero().flatten().tolist()) == set(expected)


def test_ranks_and_min_max_lie_between_0_and_1():
    values = torch.tensor([3.0, 1.0, 3.0, 2.0])
    torch.testing.assert_close(dense_rank(values), torch.tensor([1.0, 0.0, 1.0, 0.5], dtype=torch.float64))
    torch.testing.assert_close(min_max(values), torch.tensor([1.0, 0.0, 1.0, 0.5], dtype=torch.float64))
    assert dense_rank(torch.ones(3)).tolist() == min_max(torch.ones(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("criterion", sorted(CRITERIA))
@given(seed=st.integers(0, 50), ratio=st.floats(0.0, 1.0))
@settings(max_examples=15, deadline=None)
def test_exactly_the_asked_number_is_grafted(criterion, seed, ratio):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 3, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 9), nn.ReLU(), nn.Linear(9, 2))
    network = trace(model, (1, 7, 7))
    layers = {}
    for _, node in network.activations():
        fields = {f: torch.rand(node.shape, generator=generator) for f in LayerScores.__dataclass_fields__}
        layers[node.name] = fields | {"s_u": torch.randint(0, 5, node.shape, generator=generator)}
    masks = select(network, scores_of(layers, input_shape=(1, 7, 7)), criterion, ratio)
    total = sum(int(mask.sum()) for mask in masks.values())
    assert {name: mask.shape for name, mask in masks.items()} == {"1": (3, 3, 3), "4": (9,)}
    if total != round(ratio * 36):  # the rule for the last layer left more than the first layer has room for
        assert criterion in BACKWARD
        assert total < round(ratio * 36)
        assert masks["1"].all()


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_ratio_outside_0_and_1_is_refused(ratio):
    model, scores = worked_example()
    with pytest.raises(SettingsError, match="ratio must be between 0 and 1"):
        select(model, scores, ratio=ratio)


@pytest.mark.parametrize(
    ("criterion", "given_settings", "message"),
    [
        ("weighted", {}, "unknown criterion 'weighted'. Did you mean 'weighted-interval'"),
        ("weighted-interval", {"pol": 0.8}, "unknown setting 'pol'. Did you mean 'pool'"),
        ("weighted-interval", {"pool": 1.2}, "pool must be between 0 and 1"),
        ("weighted-interval", {"last_layer": "half"}, "unknown last_layer 'half'"),
        ("lg", {"gammas": ()}, "gammas must hold at least one weight"),
    ],
)
def test_unknown_names_and_wrong_settings_are_refused(criterion, given_settings, message):
    model, scores = worked_example()
    with pytest.raises(SettingsError, match=message):
        select(model, scores, criterion, **given_settings)


def test_gradient_criterion_without_labels_says_what_to_do():
    model, scores = worked_example()
    layers = {name: {"s_u": layer.s_u, "gradient": None} for name, layer in scores.layers.items()}
    with pytest.raises(SettingsError, match="needs labels"):
        select(model, scores_of(layers), "gradient")


def test_scores_of_another_network_are_refused():
    _, scores = worked_example()
    other = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    with pytest.raises(SettingsError, match="scores are of another network"):
        select(other, scores)


def test_a_network_without_activations_is_refused():
    _, scores = worked_example()
    with pytest.raises(UnsupportedOperationError, match="no activations"):
        select(nn.Linear(3, 2), scores)
