"""Every method trains every family of backbones, or says why not. `docs/backbones.md` has the table."""

import pytest
import torch
from transformers import AutoConfig, AutoModel, BertConfig, DebertaV2Config

from csezoo.modeling import DiffAugConfig, SimCSEConfig
from csezoo.modeling.contrastive.backbones import embedding_output, first_output, longest_input
from csezoo.modeling.contrastive.perturbations import perturbed
from csezoo.modeling.contrastive.published import load_published
from csezoo.modeling.contrastive.view_adapters import projections
from csezoo.modeling.methods.diffaug.model import DiffAugModel
from csezoo.modeling.methods.simcse.model import SimCSEModel
from csezoo.modeling.serving.encoder_layers_csezoo import (
    cache_argument,
    hidden_layers,
    keys_and_values,
    prefixes_in_slots,
)
from csezoo.modeling.serving.modeling_csezoo import is_causal
from csezoo.training.files import read_json
from tests.families import CAUSAL_FAMILIES, FAMILIES, SCALED, SIZES, family_config, save_family
from tests.family_table import METHODS, check_cell, check_remote_code
from tests.repositories import tiny_repository

NO_MASKED_LM = "has no mask token"
REFUSALS = {(family, method): NO_MASKED_LM for family in CAUSAL_FAMILIES for method in ("mlm", "DiffCSE")}
REFUSALS |= {("EuroBERT", "mlm"): "no layer norms"}
# `python -m tests.family_table` checks all cells. Here, families that are built in other ways than BERT are checked
# under the methods that reach into them, and each family once with the slow tests.
FAST = [
    ("ALBERT", "L2P-CSR"),
    ("MPNet", "L2P-CSR"),
    ("ELECTRA", "DiffCSE"),
    ("ModernBERT", "DiffAug LoRA"),
    ("DeBERTa-v3", "DiffAug prefix"),
    ("EuroBERT", "mlm"),
    ("Llama", "prompt"),
    ("Gemma3", "DiffAug prefix"),
    ("Qwen3", "DiffCSE"),
]
ONCE = [(family, list(METHODS)[number % len(METHODS)]) for number, family in enumerate(FAMILIES)]
CELLS = [*FAST, *(pytest.param(*cell, marks=pytest.mark.slow) for cell in ONCE)]


@pytest.fixture(scope="module")
def family_bases(tmp_path_factory):
    directory = tmp_path_factory.mktemp("families")
    return {family: save_family(family, directory / family) for family in FAMILIES}


@pytest.mark.parametrize(("family", "method"), CELLS)
def test_a_family_trains_with_a_method_or_is_refused_with_the_reason(family, method, family_bases, tmp_path):
    refused = check_cell(family, method, family_bases[family], tmp_path / "published")
    if reason := REFUSALS.get((family, method)):
        assert reason in refused
    else:
        assert refused is None


@pytest.mark.slow
def test_published_models_of_every_family_load_in_a_clean_interpreter(family_bases, tmp_path):
    methods = {family: "L2P-CSR" if number % 2 else "DiffAug prefix" for number, family in enumerate(FAMILIES)}
    for family in FAMILIES:
        assert check_cell(family, methods[family], family_bases[family], tmp_path / family) is None
    errors = check_remote_code([tmp_path / family for family in FAMILIES], tmp_path)
    assert dict(zip(FAMILIES, errors, strict=True)) == dict.fromkeys(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_causality_is_read_from_the_model_as_it_behaves(family):
    torch.manual_seed(0)
    backbone = AutoModel.from_config(family_config(family)).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        first, changed = (
            backbone(input_ids=x).last_hidden_state[0, 0] for x in (ids, ids + torch.tensor([0, 0, 0, 9]))
        )
    assert is_causal(backbone) == torch.equal(first, changed) == (family in CAUSAL_FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_longest_input_runs_and_one_token_more_does_not_for_tables_of_positions(family):
    config = family_config(family)
    backbone = AutoModel.from_config(config).eval()
    longest = longest_input(backbone)
    with torch.no_grad():
        backbone(input_ids=torch.full((1, longest), 7))
        if any(name.endswith("position_embeddings.weight") for name, _ in backbone.named_parameters()):
            with pytest.raises((IndexError, RuntimeError)):
                backbone(input_ids=torch.full((1, longest + 1), 7))


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_the_outputs_of_the_embeddings_and_the_layers(family):
    backbone = AutoModel.from_config(family_config(family)).eval()
    outputs = []
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        for module in dict.fromkeys([embedding_output(backbone), *hidden_layers(backbone)])
    ]
    with torch.no_grad():
        states = backbone(input_ids=torch.tensor([[5, 6, 7]]), output_hidden_states=True).hidden_states
    for hook in hooks:
        hook.remove()
    outputs = [output[0] if isinstance(output, tuple) else output for output in outputs]
    assert len(outputs) == len(states) == 4
    for output, state in zip(outputs[:-1], states[:-1], strict=True):  # a last norm may follow the last layer
        torch.testing.assert_close(output, state, atol=0, rtol=0)


@pytest.mark.parametrize("perturbed_outputs", [2, 3])  # of four: those of the embedding layer and of three passes
def test_a_layer_that_runs_several_times_is_perturbed_in_its_own_way_each_time(perturbed_outputs):
    backbone, means = AutoModel.from_config(family_config("ALBERT")).eval(), []
    values = [1.0, 2.0, 3.0][:perturbed_outputs]
    changes = [lambda hidden, packing, value=value: torch.full_like(hidden, value) for value in values]
    with perturbed(backbone, changes), torch.no_grad():
        for module in (embedding_output(backbone), hidden_layers(backbone)[0]):
            module.register_forward_hook(
                lambda module, inputs, output: means.append(first_output(output).mean().item())
            )
        states = backbone(input_ids=torch.tensor([[5, 6, 7]]), output_hidden_states=True).hidden_states
    assert means[:perturbed_outputs] == values and len(means) == 4 and not {*means[perturbed_outputs:]} & {*values}
    assert [state.mean().item() for state in states] == means, "pooling over layers reads what was perturbed"


def test_an_encoder_that_takes_a_cache_is_known_by_either_name_of_it():
    bert, modernbert = (AutoModel.from_config(family_config(family)) for family in ("BERT", "ModernBERT"))
    assert cache_argument(bert) in ("cache", "past_key_values")  # since transformers 5.24, and before
    assert cache_argument(modernbert) is None


def test_a_prefix_in_slots_gives_the_vectors_of_a_prefix_in_a_cache(monkeypatch):
    torch.manual_seed(0)
    config = DiffAugConfig(backbone_config=family_config("BERT"), prefix_length=3)
    model = DiffAugModel(config).double().eval()
    model.prefixes.data.normal_()
    rows = {"input_ids": torch.randint(10, 40, (4, 7)), "attention_mask": torch.ones(4, 7, dtype=torch.long)}
    rows["attention_mask"][0, 5:] = 0
    for views in (None, torch.tensor([0, 1, 0, 1])):
        cached = model.encode_tokens(**rows, views=views)[1]
        with monkeypatch.context() as patch:
            patch.setattr(model, "cache_argument", None)
            torch.testing.assert_close(model.encode_tokens(**rows, views=views)[1], cached, atol=1e-12, rtol=0)


def test_a_prefix_in_slots_is_in_the_keys_and_values_of_a_fused_projection():
    backbone = AutoModel.from_config(family_config("ModernBERT")).eval()
    prefixes, fused = torch.randn(3, 2, 1, 2, 4, 16), []  # 3 layers, 2 heads, 4 slots
    with prefixes_in_slots(backbone, prefixes) as (keys, values), torch.no_grad():
        for places in keys_and_values(backbone):
            for linear in places:
                linear.register_forward_hook(lambda linear, inputs, output: fused.append((linear, inputs, output)))
        backbone(input_ids=torch.randint(10, 40, (1, 4 + 3)))
    assert len(keys) == len(values) == len(fused) == 3
    for prefix, key, value, (linear, (hidden,), output) in zip(prefixes, keys, values, fused, strict=True):
        plain = torch.nn.functional.linear(hidden, linear.weight, linear.bias).unflatten(-1, (3, 2, 16))
        plain[:, :4, 1], plain[:, :4, 2] = prefix.transpose(2, 3)
        torch.testing.assert_close(output, plain.flatten(2), atol=1e-6, rtol=0)
        torch.testing.assert_close(
            torch.stack([key, value], 1), plain[:, :, 1:].permute(0, 2, 3, 1, 4), atol=1e-6, rtol=0
        )


def test_lora_on_positions_that_all_rows_share_is_the_mean_of_the_sets():
    """DeBERTa reads positions with the projections of the tokens; the merged model gives the served vectors."""
    config = DiffAugConfig(backbone_config=family_config("DeBERTa-v3"), views_module="lora")
    model = DiffAugModel(config).double().eval()
    for parameter in model.view_adapters.parameters():
        torch.nn.init.normal_(parameter)
    ids = torch.randint(10, 40, (3, 6))
    plain = AutoModel.from_config(config.backbone_config).double().eval()
    plain.load_state_dict(model.backbone.state_dict())
    model.view_adapters.merge_into(plain)
    torch.testing.assert_close(model(ids).last_hidden_state, plain(ids).last_hidden_state, atol=1e-9, rtol=0)


def test_a_backbone_without_known_projections_is_refused_with_their_names():
    class Odd(torch.nn.Module):
        pass

    backbone = AutoModel.from_config(BertConfig(**SIZES))
    for layer in hidden_layers(backbone):
        layer.attention.self.query = Odd()
    with pytest.raises(ValueError, match=r"each layer of bert needs .* projections whose names end in one of .query"):
        projections(backbone, (".query",))


def test_a_causal_model_has_no_first_token_to_pool():
    with pytest.raises(ValueError, match="pooling: cls reads the first token.* set pooling: last"):
        SimCSEModel(SimCSEConfig(backbone_config=family_config("Llama")))


def test_deberta_without_shared_keys_adapts_its_own_projections_only():
    config = AutoConfig.for_model("deberta-v2", **SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"])
    assert isinstance(config, DebertaV2Config)
    names = [name for name, _ in projections(AutoModel.from_config(config), (".query_proj",))]
    assert names == [".attention.self.query_proj"] * 3


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("Qwen3", {"rope_theta": 1e6}),
        ("Llama", {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **SCALED}}),
        ("Gemma3", {"rope_theta": 1e6, "rope_local_base_freq": 1e4}),
        ("ModernBERT", {"global_rope_theta": 2e4, "local_rope_theta": 2e4}),
        ("BERT", {}),
    ],
)
def test_transformers_4_finds_how_positions_are_rotated_by_its_own_names(family, names, tmp_path):
    """It ignores `rope_parameters`, and would take the defaults of the family."""
    for form, changes in {"plain": {}, "own": {"method": "isbert"}}.items():
        repository = tiny_repository(tmp_path / form, kind=family, pooling="mean", **changes)
        config = read_json(repository / "config.json")
        config = config.get("backbone_config", config)
        assert {name: config[name] for name in config if "rope" in name and name != "rope_parameters"} == names
        load_published(repository).save_pretrained(tmp_path / "again")
        assert read_json(tmp_path / "again" / "config.json") == read_json(repository / "config.json")
