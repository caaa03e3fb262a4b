"""Leaving out padding changes no number: every method, pooling, prompt and way to save memory, without dropout."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from peft import LoraConfig
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining

from csezoo.modeling import METHODS, SimCSEConfig, SimCSEModel, method
from csezoo.modeling.contrastive import packing
from csezoo.modeling.contrastive.backbones import first_output
from csezoo.modeling.contrastive.configuration import POOLING_MODES
from csezoo.modeling.contrastive.mirrored_mask import MirroredMask
from csezoo.modeling.contrastive.packed_rows import Packing, PaddedAttention
from csezoo.modeling.contrastive.packing import can_pack, packing_of
from csezoo.modeling.serving.encoder_layers_csezoo import hidden_layers
from tests.conftest import NO_DROPOUT, tiny_config
from tests.families import SIZES, family_config
from tests.methods import COMBINATIONS, CONFIGS
from tests.tiny import configure


@pytest.fixture(autouse=True)
def packed_whatever_it_costs(monkeypatch):
    """On a GPU too, where little padding is computed."""
    monkeypatch.setattr(packing, "LEAST_ON_DEVICE", 0.0)
    monkeypatch.setattr(packing, "LEAST_TOKENS", 0)


PROMPT = {
    "pooling": "prompt",
    "denoise": "train",
    "prompts": ["this {sentence} means {mask} .", "{sentence} : {mask}"],
}
PROMPT |= {"prompt_token_ids": [[[2, 20], [21, 4, 3]], [[2], [22, 4, 3]]]}


def configured(name, kind, **changes):
    """A method's tiny configuration, without any dropout."""
    config = configure(name, kind, **changes)
    return without_dropout(config, config.backbone_config)


def without_dropout(config, backbone):
    """The configuration with this backbone, and a generator that is like it."""
    config.lora_dropout, config.backbone_config = 0.0, backbone
    if config.model_type == "diffcse" and not config.generator_config:
        config.generator_config = backbone
    for part in filter(None, (backbone, config.model_type == "diffcse" and config.generator_config)):
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
            if key in part.to_dict():
                part.update({key: 0.0})
    return config


def batch(sentences=6, views=2, tokens=12, prompt=False):
    """Rows of many lengths, each with a mask token before its last one if there is a prompt."""
    torch.manual_seed(1)
    lengths = torch.randint(6, tokens, (sentences, views))
    lengths[0, 0] = tokens
    attention_mask = (torch.arange(tokens) < lengths[..., None]).long()
    input_ids = torch.randint(10, 40, (sentences, views, tokens)).where(attention_mask.bool(), 1)
    if prompt:
        input_ids.scatter_(-1, lengths[..., None] - 2, 4)
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def flat(rows):
    return {name: value.flatten(0, 1) for name, value in rows.items()}


def mirrored(rows):
    """The rows as on a GPU, whose values the host knows from the collator: attention is then on padded rows."""
    return rows | {
        name: MirroredMask.of(rows[name], host=rows[name].clone()) for name in rows if name.endswith("attention_mask")
    }


def both(config, rows, training_class=None, prepare=lambda model: None):
    """Loss, gradients and embeddings of a float64 model, with its padding left out and computed.

    It is left out in two ways, that of a CPU and that of a GPU, which must agree.
    """
    torch.manual_seed(0)
    packed = (training_class or METHODS[config.model_type][2])(config).double().train()
    as_on_gpu, padded = copy.deepcopy(packed), copy.deepcopy(packed)
    padded.compute_padding()
    made = []
    for model, read in ((packed, rows), (padded, rows), (as_on_gpu, mirrored(rows))):
        prepare(model)
        torch.manual_seed(3)
        output = model(**read)
        output.loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        made.append((output.loss, output.embeddings, gradients, model.pop_padding_tokens()))
    *made, (*gpu, gpu_tokens) = made
    torch.testing.assert_close(gpu, list(made[1][:-1]), rtol=1e-9, atol=1e-10)
    assert gpu_tokens < made[1][-1] or made[0][-1] > 0 or made[1][-1] == 0
    return made


def assert_same(made, *, computed=0):
    (*packed, packed_tokens), (*padded, padded_tokens) = made
    assert packed_tokens == computed and padded_tokens > computed
    torch.testing.assert_close(packed, padded, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_numbers_of_every_method_are_those_of_the_padded_batch(name, kind):
    config = configured(name, kind)
    made = both(config, batch(views=3 if config.model_type == "prdsimcse" else 2))
    # The discriminator's mean over all positions reads the vectors at padding, so that pass computes them.
    discriminated = config.model_type == "diffcse" and config.rtd_weight > 0 and config.prediction == "rtd"
    if discriminated and config.rtd_reduction == "mean":
        assert 0 < made[0][-1] < made[1][-1]
        torch.testing.assert_close(made[0][:-1], made[1][:-1], rtol=1e-9, atol=1e-10)
    elif name == "l2pcsr-released":  # it attends to padding
        torch.testing.assert_close(made[0][:-1], made[1][:-1], rtol=1e-9, atol=1e-10)
    else:
        assert_same(made)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_numbers_of_a_combination_are_those_of_the_padded_batch(name):
    config_class, _, training_class = method(name)
    heads = {"mask_token_id": 4, "special_token_ids": [0, 2, 3, 4]}
    heads |= {"rtd_reduction": "nonpad_mean"} if "diffcse" in name else {}
    config = config_class(backbone_config=tiny_config("bert", **NO_DROPOUT), **heads)
    assert_same(both(config, batch(views=3 if "prdsimcse" in name else 2), training_class))


def plain(model):
    pass


def in_mini_batches(model):
    model.mini_batch_size = 2


def checkpointed(model):
    model.gradient_checkpointing_enable()


SETTINGS = [("simcse", {"pooling": pooling}, plain) for pooling in sorted(set(POOLING_MODES) - {"prompt", "wk"})]
SETTINGS += [(name, PROMPT, plain) for name in ("simcse", "l2pcsr", "diffaug", "diffaug-lora")]
SETTINGS += [("l2pcsr", {"weakened_layers": 4}, plain)]  # the last layer too
SETTINGS += [(name, {}, in_mini_batches) for name in ("simcse", "diffaug", "diffcse-corrective")]
SETTINGS += [(name, {}, checkpointed) for name in ("simcse", "l2pcsr", "diffcse-corrective")]


@pytest.mark.parametrize(("name", "changes", "prepare"), SETTINGS)
def test_the_numbers_of_a_setting_are_those_of_the_padded_batch(name, changes, prepare):
    assert_same(both(configured(name, "bert", **changes), batch(prompt=changes == PROMPT), prepare=prepare))


def test_wk_pooling_computes_padding():
    """It divides by the lengths of token vectors, at padding too."""
    packed, padded = both(configured("simcse", "bert", pooling="wk"), batch())
    assert packed[-1] == padded[-1]
    torch.testing.assert_close(packed, padded)


def test_labelled_pairs_and_adapters_of_views_are_packed_too():
    config = configured("diffaug-adapter", "bert", nli_classes=2)
    rows = {f"nli_{name}": value for name, value in batch(views=3).items()}
    assert_same(both(config, rows))


def last_layer_tokens(model, rows, **options):
    """How many tokens the last layer returns, and the outputs."""
    counted = []
    layer = hidden_layers(model.backbone)[-1]
    handle = layer.register_forward_hook(lambda module, inputs, output: counted.append(first_output(output).shape[1]))
    outputs = model(**rows, **options)
    handle.remove()
    return counted[-1], outputs


def simcse(**changes):
    torch.manual_seed(0)
    return SimCSEModel(SimCSEConfig(**{"backbone_config": tiny_config("bert"), **changes})).double().eval()


@pytest.mark.parametrize("changes", [*({"pooling": mode} for mode in POOLING_MODES if mode != "prompt"), PROMPT])
def test_the_last_layer_computes_only_the_tokens_that_pooling_reads_and_all_for_a_user(changes):
    model, rows = simcse(**changes, mask_token_id=4), flat(batch(prompt=changes == PROMPT))
    all_tokens, expected = last_layer_tokens(model, rows)
    tokens, outputs = last_layer_tokens(model, rows, pooled_only=True)
    torch.testing.assert_close(outputs.pooler_output, expected.pooler_output, rtol=1e-9, atol=1e-12)
    assert tokens == (len(rows["input_ids"]) if changes["pooling"] in ("cls", "last", "prompt") else all_tokens)
    if changes["pooling"] == "cls":
        assert not outputs.last_hidden_state[:, 1:].any() and outputs.last_hidden_state[:, 0].all()


NO_PADDING = {"input_ids": torch.arange(10, 38).view(4, 7), "attention_mask": torch.ones(4, 7, dtype=torch.long)}
# In layers with the norm first, keys and values read the norm of the layer's input.
NORM_FIRST = [
    {"backbone_config": AutoConfig.for_model(name, **SIZES, **NO_DROPOUT, pad_token_id=1)}
    for name in ("roberta-prelayernorm", "xlm-roberta-xl")
]


@pytest.mark.parametrize(
    ("changes", "rows", "expected"),
    [({}, NO_PADDING, 4), *((changes, flat(batch()), int(batch()["attention_mask"].sum())) for changes in NORM_FIRST)],
)
def test_the_last_layer_of_other_batches_and_layers_computes_what_it_may(changes, rows, expected):
    model = simcse(**changes)
    tokens, outputs = last_layer_tokens(model, rows, pooled_only=True)
    assert tokens == expected
    model.compute_padding()
    torch.testing.assert_close(outputs.pooler_output, model(**rows).pooler_output, rtol=1e-9, atol=1e-12)


def test_all_tokens_are_computed_if_a_pooled_one_is_padding():
    rows = {name: value.flip(1) for name, value in flat(batch()).items()}
    assert last_layer_tokens(simcse().train(), rows, pooled_only=True, checked=True)[0] == rows["attention_mask"].sum()


def test_an_update_of_each_paper_computes_only_pooled_tokens_in_the_last_layer_of_its_encoder():
    """But not with masks on the last layer, nor with modules of two views in every layer."""

    def tokens(name, checkpoint=False, **changes):
        config = configured(name, "bert", **changes)
        model = METHODS[config.model_type][2](config).train()
        if checkpoint:
            model.gradient_checkpointing_enable()
        counted = []
        layer = hidden_layers(model.model.backbone)[-1]
        layer.register_forward_hook(lambda module, inputs, output: counted.append(first_output(output).shape[1]))
        model(**rows)
        return counted[-1]

    rows = batch()
    everything = int(rows["attention_mask"].sum())
    for name in ("simcse", "prdsimcse", "l2pcsr", "diffcse", "diffaug"):
        assert tokens(name) == 12
    assert tokens("sgopt") == 6  # its twin makes the other views
    assert tokens("l2pcsr", weakened_layers=4) == everything
    assert tokens("diffaug-lora") == everything
    assert tokens("simcse", checkpoint=True) == 12


COUNT_POSITIONS_IN_LAYERS = ("DeBERTa-v3", "MPNet", "ModernBERT")
FAMILIES = ("ALBERT", "ELECTRA", "DistilBERT", *COUNT_POSITIONS_IN_LAYERS)


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_give_the_same_vectors_packed_or_not(family):
    model = simcse(backbone_config=family_config(family))
    assert can_pack(model.backbone) == (family not in COUNT_POSITIONS_IN_LAYERS)
    rows = flat(batch())
    vectors = model(**rows, pooled_only=True).pooler_output
    left = model.pop_padding_tokens()
    model.compute_padding()
    torch.testing.assert_close(vectors, model(**rows).pooler_output, rtol=1e-9, atol=1e-12)
    # Parts of the batch, with rows of similar length, have a little padding.
    assert 0 < left < model.pop_padding_tokens() / 2 if family in COUNT_POSITIONS_IN_LAYERS else left == 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "name", ["simcse", "prdsimcse", "sgopt", "diffcse-corrective", "l2pcsr", "diffaug", "consert"]
)
def test_the_numbers_of_methods_on_other_families_are_those_of_the_padded_batch(name, family):
    """Where layers count positions, in parts; where a method changes layers (l2pcsr, consert, diffaug), together."""
    config = without_dropout(configured(name, "bert"), family_config(family))
    rows = batch(sentences=8, views=3 if name == "prdsimcse" else 2)
    (*packed, packed_tokens), (*padded, padded_tokens) = both(config, rows)
    torch.testing.assert_close(packed, padded, rtol=1e-9, atol=1e-10)
    if family in COUNT_POSITIONS_IN_LAYERS:
        in_parts = name in ("simcse", "prdsimcse", "sgopt", "diffcse-corrective")
        assert (packed_tokens < padded_tokens) == in_parts


@pytest.mark.parametrize("name", ["simcse", "simcse-mean", "diffaug", "l2pcsr"])
def test_the_numbers_of_rows_that_differ_much_are_those_of_the_padded_batch(name):
    """On a GPU their attention is computed in a few groups, each padded to its own longest row."""
    config = configured(name, "bert")
    config.backbone_config.max_position_embeddings = 200
    rows = batch(sentences=12, tokens=180)
    made = PaddedAttention(rows["attention_mask"].flatten(0, 1), device=torch.device("cpu"))
    assert 2 < len(made.groups) < 6
    assert_same(both(config, rows))


def test_a_device_computes_padding_where_it_waits_for_the_host(monkeypatch):
    """Few tokens, for the width of the encoder, or little padding."""
    monkeypatch.undo()
    encoder = simcse().backbone
    enough = int(packing.LEAST_TOKENS * (768 / encoder.config.hidden_size) ** 2 / 32)

    def made(rows, length):
        mask = (torch.arange(32) < torch.full((rows, 1), length)).long()
        return packing_of(encoder, MirroredMask.of(mask, host=mask))

    assert made(enough, 20).padding == 0
    assert made(enough - 1, 20) is None
    assert made(enough, 24) is None


def test_a_mask_that_only_the_device_knows_is_not_asked():
    assert packing_of(simcse().backbone, torch.ones(2, 3, device="meta")) is None


def test_a_decoder_is_not_packed():
    assert not can_pack(simcse(backbone_config=tiny_config("bert", is_decoder=True), pooling="mean").backbone)


def test_outputs_for_a_user_have_the_padded_shape(kind):
    model = simcse(backbone_config=tiny_config(kind))
    rows = flat(batch())
    packed = model(**rows, output_hidden_states=True)
    model.compute_padding()
    padded = model(**rows, output_hidden_states=True)
    real = rows["attention_mask"].bool()
    assert len(packed.hidden_states) == len(padded.hidden_states) == 4
    for one, other in zip(packed.hidden_states, padded.hidden_states, strict=True):
        torch.testing.assert_close(one[real], other[real], rtol=1e-9, atol=1e-12)
        assert one.shape == other.shape


# The passes are packed, in parts, and with prefixes in the places of extra tokens.
@pytest.mark.parametrize(("name", "family"), [("simcse", "ELECTRA"), ("simcse", "MPNet"), ("diffaug", "DistilBERT")])
def test_threads_that_share_a_model_get_the_vectors_of_one_thread(name, family):
    model = METHODS[name][1](METHODS[name][0](backbone_config=family_config(family))).double().eval()
    batches = []
    for seed in range(8):
        rows = batch(sentences=4 + seed)
        batches.append({name: value.roll(seed, 0).flatten(0, 1) for name, value in rows.items()})

    @torch.no_grad()
    def vectors(rows):
        return model(**rows, pooled_only=True).pooler_output

    alone = [vectors(rows) for rows in batches]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(vectors, batches * 10))
    torch.testing.assert_close(together, alone * 10)


def test_eager_attention_and_requested_attentions_compute_padding():
    model = simcse()
    model.set_attn_implementation("eager")
    rows = flat(batch())
    assert model(**rows, output_attentions=True).attentions[0].shape == (12, 2, 12, 12)
    assert model.pop_padding_tokens() == (rows["attention_mask"] == 0).sum()
    rows["attention_mask"][:, 2:] = 0
    model(**rows, output_attentions=True)
    assert model.pop_padding_tokens() == 12 * 10


def test_an_adapter_that_is_added_later_is_applied():
    model, rows = simcse(pooling="cls"), flat(batch())
    without = model(**rows, pooled_only=True).pooler_output
    model.backbone.add_adapter(LoraConfig(r=2, target_modules=["query", "key", "value"], init_lora_weights=False))
    vectors = model(**rows, pooled_only=True).pooler_output
    assert (vectors - without).abs().max() > 1e-3
    model.compute_padding()
    torch.testing.assert_close(vectors, model(**rows).pooler_output)


def test_little_padding_and_empty_rows_are_computed():
    model = simcse()
    almost = torch.ones(8, 10)
    almost[0, -2:] = 0
    assert model.packing(model.backbone, almost) is None and model.pop_padding_tokens() == 2
    almost[0] = 0
    assert model.packing(model.backbone, almost) is None and model.pop_padding_tokens() == 10
    with torch.inference_mode():
        model.packing(model.backbone, almost)
    assert model.pop_padding_tokens() == 0, "encode does not count"
    almost[0, 0] = 1
    assert isinstance(model.packing(model.backbone, almost), Packing) and model.pop_padding_tokens() == 0


def test_holes_in_the_mask_are_left_out_as_attention_leaves_them_out():
    model = simcse()
    rows = flat(batch())
    rows["attention_mask"][:, 2] = 0
    vectors = model(**rows).pooler_output
    model.compute_padding()
    torch.testing.assert_close(vectors, model(**rows).pooler_output, rtol=1e-9, atol=1e-12)


def test_a_saved_model_records_nothing_of_it(tmp_path):
    config = configure("simcse", "bert")
    model = METHODS["simcse"][2](config)
    model(**batch())
    model.save_pretrained(tmp_path)
    assert "packed" not in (tmp_path / "config.json").read_text(encoding="utf-8")
    for auto in (AutoModel, AutoModelForPreTraining):
        assert auto.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_computed_padding_has_the_draws_of_the_plain_backbone_bit_for_bit():
    """Also after passes that left it out, because those change the attention's implementation."""
    model = simcse().train()
    plain = copy.deepcopy(model.backbone)
    rows = flat(batch())
    model(**rows)
    assert model.pop_padding_tokens() == 0
    model.compute_padding()
    vectors = []
    for run in (lambda: model(**rows).last_hidden_state, lambda: plain(**rows).last_hidden_state):
        torch.manual_seed(0)
        vectors.append(run())
    assert torch.equal(*vectors)
