"""What a loss does beside training: it keeps the model's own modules, refuses what does not fit, saves, evaluates."""

import pytest
import torch
from datasets import DatasetDict
from peft import LoraConfig
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Dropout,
    LayerNorm,
    Pooling,
    StaticEmbedding,
    WeightedLayerPooling,
)

import csezoo
from csezoo import TrainingCallback, losses
from csezoo.modeling.objectives import info_nce
from csezoo.training.errors import UserError
from tests.conftest import sentence_transformer
from tests.repositories import tiny_repository
from tests.training.trainers.training import TEXTS, loss_of, sentences, train_in_trainer, triplets


@pytest.fixture
def base(bases):
    return bases["bert"]


@pytest.fixture
def model(base):
    return sentence_transformer(base)


def features(model, texts=TEXTS[:4], **options):
    return [model.preprocess(list(texts), **options)]


def pairs(model, **options):
    return [model.preprocess(texts, **options) for texts in (TEXTS[:5], TEXTS[7:12])]


NO_HEAD = {"projection": "none"}


def expected_loss(model, prompt=None):
    """InfoNCE of the vectors that the model itself returns."""
    vectors = [model.encode(texts, prompt=prompt, convert_to_tensor=True) for texts in (TEXTS[:5], TEXTS[7:12])]
    return info_nce(*vectors, temperature=0.05)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "lasttoken", "weightedmean", ("cls", "mean")])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_pooling_is_that_of_the_model(base, pooling, normalize):
    model = sentence_transformer(base, pooling, normalize)
    loss = losses.SimCSELoss(model, **NO_HEAD)
    model.eval()
    torch.testing.assert_close(loss(pairs(model)), expected_loss(model), atol=1e-5, rtol=1e-5)


def test_a_dense_module_is_in_the_loss_and_is_trained(base):
    model = sentence_transformer(base, normalize=False)
    model.append(Dense(32, 8))
    loss = losses.L2PCSRLoss(model, **NO_HEAD)
    model.eval()
    torch.testing.assert_close(loss(pairs(model)), expected_loss(model), atol=1e-5, rtol=1e-5)
    model.train()
    loss(features(model)).backward()
    assert model[2].linear.weight.grad.abs().sum() > 0
    with pytest.raises(UserError, match="8 dimensions and its layers 32.*projection='none'"):
        losses.SimCSELoss(model)
    with pytest.raises(UserError, match="remove the Dense module$"):
        losses.DiffCSELoss(model, **NO_HEAD)


def test_matryoshka_reads_the_widths_behind_a_dense_module(base):
    model = sentence_transformer(base, normalize=False)
    model.append(Dense(32, 64))
    kinds = losses.ZooLoss(model, **NO_HEAD), MultipleNegativesRankingLoss(model)
    model.eval()
    ours, theirs = (MatryoshkaLoss(model, loss, [64, 32])(pairs(model), torch.tensor([])) for loss in kinds)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_prompt_that_the_pooling_leaves_out_is_left_out_of_the_loss(base):
    model = sentence_transformer(base)
    model[1].include_prompt = False
    loss = losses.SimCSELoss(model, **NO_HEAD)
    model.eval()
    prompt = "this sentence : "
    torch.testing.assert_close(loss(pairs(model, prompt=prompt)), expected_loss(model, prompt), atol=1e-5, rtol=1e-5)
    first, second = pairs(model, prompt=prompt), pairs(model, prompt="the ")
    with pytest.raises(UserError, match="same length"):
        loss([first[0], second[1]])


@pytest.mark.parametrize("given", [None, "the cat: ", {"text": "a dog: "}])
def test_a_trainer_that_leaves_out_the_model_s_prompt_is_named(base, tmp_path, caplog, given):
    loss = loss_of("simcse", base, base)
    loss.model.prompts, loss.model.default_prompt_name = {"query": "the cat: "}, "query"
    train_in_trainer(loss, tmp_path, sentences(12), prompts=given)
    line = "prompts: the model puts 'the cat: ' before each text that it encodes, and the trainer does not; give"
    assert caplog.text.count(line) == (given is None)


@pytest.mark.parametrize(("default", "given"), [("query", None), (None, "the cat: ")])
def test_a_prefix_between_prompt_and_text_is_refused(base, tmp_path, default, given):
    loss = loss_of("prdsimcse", base, base)
    loss.model.prompts, loss.model.default_prompt_name = {"query": "the cat: "}, default
    with pytest.raises(UserError, match="prompts: prdsimcse puts a prefix between prompt and text"):
        train_in_trainer(loss, tmp_path, sentences(12), prompts=given)


def test_the_projection_reads_the_vector_before_normalize(base):
    plain, normalized = (sentence_transformer(base, normalize=normalize).eval() for normalize in (False, True))
    ours = []
    for model in (plain, normalized):
        torch.manual_seed(0)
        ours.append(losses.SimCSELoss(model)(pairs(model)))
    torch.testing.assert_close(*ours)


def test_prdsimcse_writes_its_prefixes_into_the_tokens(base, model):
    loss = losses.PrdSimCSELoss(model, positive_prefix="one-[MASK]", negative_prefix="one-reversal")
    tokenizer = model[0].tokenizer
    ids = loss.batch(features(model, ["the cat sees the dog."]), None)["input_ids"]
    said = [tokenizer.decode(row, skip_special_tokens=False) for row in ids[0]]
    assert [text.replace(" [PAD]", "") for text in said] == [
        "[CLS] the cat sees the dog. [SEP]",
        "[CLS] [MASK] the cat sees the dog. [SEP]",
        "[CLS] [UNK] the cat sees the dog. [SEP]",
    ]
    columns = [model.preprocess(texts) for texts in (["the cat"], ["the dog"], ["the tree"])]
    assert torch.equal(loss.batch(columns, None)["input_ids"][:, 1], columns[1]["input_ids"])


@pytest.mark.parametrize("text", ["the cat sees.", TEXTS[4]])
def test_prefixes_that_count_as_text_shorten_it_as_in_the_own_loop(base, text):
    keys = {"prefix_within_max_length": True}
    loss = losses.PrdSimCSELoss(sentence_transformer(base, longest=16), **keys)
    _, collator = csezoo.for_training("prdsimcse", str(base), max_length=16, **keys)
    ids = loss.batch(features(loss.model, [text]), None)["input_ids"]
    assert torch.equal(ids, collator([{"text": text}])["input_ids"])


def test_a_loss_edits_special_tokens_where_the_method_does(base):
    loss = losses.ZooLoss(sentence_transformer(base).train(), "consert")
    _, collator = csezoo.for_training("consert", str(base), pooling="mean", max_length=64)
    batches = []
    for make in (
        lambda: loss.batch(features(loss.model), None),
        lambda: collator([{"text": text} for text in TEXTS[:4]]),
    ):
        torch.manual_seed(0)
        batches.append(make()["input_ids"])
    assert torch.equal(*batches)
    assert len(set(batches[0][:, 1, 0].tolist())) > 1, "[CLS] was moved"


def test_evaluation_has_no_dropout_in_the_heads_and_the_parts_are_logged(base, tmp_path):
    loss = loss_of("diffcse", base, base, rtd_mask_ratio=0.0)  # masks are drawn in evaluation, too
    trainer = train_in_trainer(
        loss, tmp_path, sentences(12), callbacks=[TrainingCallback(loss)], eval_rows=sentences(4)
    )
    modes = []
    loss.trained.projection.register_forward_hook(lambda module, *_: modes.append(module.training))
    scores = [trainer.evaluate()["eval_loss"] for _ in range(2)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6) and modes == [False, False]
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert all({"contrastive", "rtd"} <= row.keys() for row in logged)
    for row in logged:
        total = row["contrastive"] + loss.trained.config.rtd_weight * row["rtd"]
        assert row["loss"] == pytest.approx(total, rel=1e-4)
    assert {"eval_contrastive", "eval_rtd"} <= trainer.state.log_history[-1].keys()
    trainer.evaluate({"one": sentences(4), "two": sentences(6)})
    one, two = trainer.state.log_history[-2:]
    assert {"eval_one_contrastive", "eval_one_rtd"} <= one.keys() and "eval_two_contrastive" in two


def test_the_parts_of_several_losses_are_their_means_over_all_batches(base, model, tmp_path):
    given = {name: loss_of(name, base, base, model=model, dtype=torch.float32) for name in ("simcse", "diffcse")}
    callbacks, rows = [TrainingCallback(given)], DatasetDict({"simcse": sentences(12), "diffcse": sentences(16)})
    options = {"max_steps": 7, "logging_steps": 7, "callbacks": callbacks, "eval_rows": rows}
    trainer = train_in_trainer(given["simcse"], tmp_path, rows, wrap=lambda *_: given, **options)
    trainer.evaluate()
    weight = given["diffcse"].trained.config.rtd_weight
    (trained,) = [row for row in trainer.state.log_history if "loss" in row]
    assert trained["loss"] == pytest.approx(trained["contrastive"] + weight * trained["rtd"], rel=1e-4)
    one, two = trainer.state.log_history[-2:]
    assert one["eval_simcse_loss"] == pytest.approx(one["eval_simcse_contrastive"], rel=1e-4)
    assert "eval_simcse_rtd" not in one and "eval_diffcse_rtd" in two


def test_the_callback_takes_the_losses_that_a_trainer_takes(base, model):
    one, two = (losses.SimCSELoss(model) for _ in range(2))
    around = MatryoshkaLoss(model, one, [32, 16])
    assert TrainingCallback(around).losses == (one,)
    assert TrainingCallback({"x": around, "y": two, "z": two}).losses == (one, two)
    for wrong in (model, "nli", MultipleNegativesRankingLoss(model), {"x": MatryoshkaLoss(model, model, [32])}):
        with pytest.raises(UserError, match="^TrainingCallback: expected losses of csezoo.losses, got .*these alone$"):
            TrainingCallback(wrong)


def test_two_callbacks_whose_heads_would_overwrite_each_other_are_refused(base, model, tmp_path):
    given = {name: loss_of(name, base, base, model=model) for name in ("simcse", "diffcse")}
    rows = DatasetDict({"simcse": sentences(12), "diffcse": sentences(16)})
    with pytest.raises(
        UserError, match=r"the trainer has two, .* give one all losses, TrainingCallback\(loss, other\)"
    ):
        train_in_trainer(
            given["simcse"],
            tmp_path,
            rows,
            wrap=lambda *_: given,
            callbacks=[TrainingCallback(each) for each in given.values()],
        )


def test_the_saved_model_needs_no_csezoo_and_has_its_own_modules(base, tmp_path):
    loss = loss_of("l2pcsr", base, base, dtype=torch.float32)
    train_in_trainer(loss, tmp_path / "run", sentences(12))
    loss.bound[0].save(str(tmp_path / "saved"))
    assert not list((tmp_path / "saved").glob("*.py"))
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    assert [type(module).__name__ for module in loaded] == ["Transformer", "Pooling", "Normalize"]
    expected = loss.bound[0].eval().encode(TEXTS[:3])
    torch.testing.assert_close(torch.tensor(loaded.encode(TEXTS[:3])), torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("disabled", [False, True])
def test_save_pretrained_merges_the_adapters_of_peft(base, model, tmp_path, disabled):
    model.add_adapter(LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False))
    if disabled:
        model.disable_adapters()
    losses.SimCSELoss(model.eval()).save_pretrained(tmp_path)
    served = torch.nn.functional.normalize(torch.tensor(SentenceTransformer(str(tmp_path)).encode(TEXTS[:3])))
    torch.testing.assert_close(served, torch.tensor(model.encode(TEXTS[:3])), atol=1e-6, rtol=0)


def test_an_adapter_that_replaces_weights_is_refused(base, model):
    model.add_adapter(LoraConfig(r=2, target_modules=["query"], modules_to_save=["word_embeddings"]))
    with pytest.raises(UserError, match="model: its adapter replaces .*word_embeddings.*modules_to_save"):
        losses.SimCSELoss(model)


@pytest.mark.parametrize(("name", "keys"), [("sgopt", {"projection_size": 8}), ("contrastive_tension", {})])
def test_adapters_are_refused_where_a_method_has_a_second_encoder(base, model, name, keys):
    model.add_adapter(LoraConfig(r=2, target_modules=["query", "value"]))
    with pytest.raises(UserError, match="model: it has an adapter; .*lora_rank"):
        losses.ZooLoss(model, name, **keys)


def test_the_encoder_keeps_no_attention_of_the_zoo(base, model):
    losses.SimCSELoss(model.train())(features(model)).backward()
    assert model[0].auto_model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("keys", [{"prefix_length": 2}, {"views_module": "lora"}, {"views_module": "adapter"}])
def test_save_pretrained_keeps_what_a_plain_encoder_lacks(base, tmp_path, keys):
    model = sentence_transformer(base)
    loss = losses.DiffAugLoss(model, **keys, nli_classes=0)
    train_in_trainer(loss, tmp_path / "run", sentences(12))
    loss.save_pretrained(tmp_path / "best")
    loaded = SentenceTransformer(str(tmp_path / "best"), trust_remote_code=True)
    serving = loss.trained.serving_model().eval()
    served = torch.tensor(serving.encode(TEXTS[:3]))
    torch.testing.assert_close(torch.tensor(loaded.encode(TEXTS[:3])), served, atol=1e-5, rtol=0)
    if "prefix_length" in keys:
        without = torch.tensor(model.eval().encode(TEXTS[:3]))
        assert (torch.nn.functional.normalize(served) - without).abs().max() > 1e-3


@pytest.mark.parametrize("default", ["query", "passage"])
def test_save_pretrained_serves_as_the_model_does(base, tmp_path, default):
    model = sentence_transformer(base)
    model.prompts, model.default_prompt_name = {"query": "the cat: ", "passage": ""}, default
    model.similarity_fn_name, model.truncate_dim = "dot", 20
    losses.SimCSELoss(model).save_pretrained(tmp_path)
    loaded = SentenceTransformer(str(tmp_path))
    torch.testing.assert_close(torch.tensor(loaded.encode(TEXTS[:3])), torch.tensor(model.eval().encode(TEXTS[:3])))
    assert (loaded.default_prompt_name, loaded.similarity_fn_name, loaded.truncate_dim) == (default, "dot", 20)
    assert loaded.prompts["passage"] == ""


def test_the_best_encoder_has_its_own_heads(base, tmp_path):
    loss = losses.DiffAugLoss(sentence_transformer(base), prefix_length=2, nli_classes=0)
    every = {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 1, "eval_steps": 1}
    options = {**every, "load_best_model_at_end": True, "learning_rate": 0.1}
    callbacks = [TrainingCallback(loss)]
    trainer = train_in_trainer(loss, tmp_path, sentences(12), callbacks=callbacks, eval_rows=sentences(4), **options)
    scores = {row["step"]: row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row}
    best = min(scores, key=scores.__getitem__)
    assert len(scores) == 3
    heads = load_file(tmp_path / f"checkpoint-{best}" / "csezoo_loss_0.safetensors")
    assert all(heads[name].equal(tensor) for name, tensor in loss.heads().items())


def test_the_adapters_of_an_earlier_loss_are_refused(base, model):
    losses.DiffAugLoss(model, views_module="lora", nli_classes=0)
    with pytest.raises(UserError, match="has the adapters of another loss"):
        losses.SimCSELoss(model)


def test_an_encoder_that_another_loss_has_frozen_is_named(base, model, caplog):
    losses.DiffAugLoss(model, stage="nli")
    loss = losses.SimCSELoss(model.train())
    loss(features(model))
    assert "the encoder is frozen" in caplog.text


def test_a_token_that_a_pooling_reads_keeps_its_place(base):
    model = sentence_transformer(base, "cls", normalize=False)
    model.append(Dense(32, 32))
    loss = losses.ZooLoss(model.train(), "consert")
    ids = loss.batch(features(model), None)["input_ids"]
    assert set(ids[:, :, 0].flatten().tolist()) == {model.tokenizer.cls_token_id}
    leaving_out = SentenceTransformer(modules=[model[0], Pooling(32, "mean", include_prompt=False)])
    with pytest.raises(UserError, match="prompts: the pooling leaves them out, and the method edits texts"):
        losses.ZooLoss(leaving_out.train(), "consert")(features(leaving_out, prompt="the cat: "))


def test_save_pretrained_refuses_a_pooling_that_the_zoo_does_not_have(base, tmp_path):
    loss = losses.SimCSELoss(sentence_transformer(base, "weightedmean"))
    with pytest.raises(UserError, match=r"use model.save\(\)"):
        loss.save_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: losses.SimCSELoss(model, temprature=0.1), "'temprature': did you mean temperature?"),
        (lambda model: losses.SimCSELoss(model, temperature=-1), "temperature: -1.0 must be"),
        (lambda model: losses.SimCSELoss(model, pooling="cls"), "pooling: the SentenceTransformer has its own"),
        (lambda model: losses.SimCSELoss(model, ema_decay=0.9), "ema_decay: .*for_training"),
        (lambda model: losses.SimCSELoss(model, lora_rank=4), r"lora_rank: .*add_adapter"),
        (lambda model: losses.SimCSELoss(model, projection_at_test=True), "projection_at_test: append a Dense"),
        (lambda model: losses.SimCSELoss(model, stage="nli"), "stage: nli needs nli_classes"),
        (
            lambda model: losses.SimCSELoss(model, nli_classes=2, nli_weight=1.0),
            "nli_weight: a batch has sentences",
        ),
        (lambda model: losses.SimCSELoss(model[0]), "expected a SentenceTransformer, got Transformer"),
        (lambda model: losses.DiffCSELoss(model), "generator: DiffCSE needs a masked language model"),
        (lambda model: losses.L2PCSRLoss(model, mini_batch_size=2), "mini_batch_size: .*leave it out"),
        (lambda model: losses.ZooLoss(model, "l2pcsr+diffaug"), "cannot be combined"),
        (lambda model: losses.ZooLoss(model, "simcsee"), "must be one of simcse"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(model, make, message):
    with pytest.raises((UserError, ValueError), match=message) as raised:
        make(model)
    assert "\n" not in str(raised.value)


def test_a_model_of_other_modules_is_refused(base, model):
    static = SentenceTransformer(modules=[StaticEmbedding(model[0].tokenizer, embedding_dim=8)])
    with pytest.raises(UserError, match="needs a Transformer, then Pooling.*got StaticEmbedding"):
        losses.SimCSELoss(static)
    layers = SentenceTransformer(modules=[model[0], WeightedLayerPooling(32, 3), Pooling(32)])
    with pytest.raises(UserError, match="got Transformer, WeightedLayerPooling"):
        losses.SimCSELoss(layers)


@pytest.mark.parametrize("name", ["sgopt", "simcse+sgopt"])
def test_layers_that_the_views_of_sgopt_do_not_pass_are_refused(base, name):
    for module in (Dense(32, 32), Dense(32, 16), LayerNorm(32)):
        model = sentence_transformer(base)
        model.append(module)
        with pytest.raises(UserError, match=f"^model: it has {type(module).__name__} after its pooling, which the v"):
            losses.ZooLoss(model, name)
    model = sentence_transformer(base)
    model.append(Dropout(0.1))
    losses.ZooLoss(model, name, projection_size=8)(features(model))


def test_an_encoder_of_its_repository_s_code_is_refused(tmp_path):
    tiny_repository(tmp_path, pooling="mean")
    with pytest.raises(UserError, match="^model: its encoder is code of its repository; load it without trust_remote"):
        losses.SimCSELoss(SentenceTransformer(str(tmp_path), trust_remote_code=True))
    losses.SimCSELoss(SentenceTransformer(str(tmp_path)))


def test_texts_that_leave_no_room_for_prefixes_are_refused(base):
    model = sentence_transformer(base, longest=64)
    losses.SimCSELoss(model)
    with pytest.raises(UserError, match="max_seq_length: 64 is too long for diffaug; set model.max_seq_length = 50"):
        losses.DiffAugLoss(model)
    model.max_seq_length = 50
    losses.DiffAugLoss(model)(features(model))


def test_a_batch_that_the_method_cannot_take_is_refused(base, model):
    columns = [model.preprocess(TEXTS[:2])] * 3
    with pytest.raises(UserError, match="sgopt needs one text column or two, not 3"):
        losses.SGOPTLoss(model, projection_size=8)(columns)
    with pytest.raises(UserError, match="label: stage nli needs a column of labels for pairs"):
        losses.DiffAugLoss(model, stage="nli", prefix_length=2)(columns[:2])
    with pytest.raises(UserError, match="no labels for triplets"):
        losses.DiffAugLoss(model, stage="nli", prefix_length=2)(columns, torch.ones(2))
    with pytest.raises(UserError, match=r"from 0 to 1 \(nli_classes\), got 1.0"):
        losses.DiffAugLoss(model, stage="nli", prefix_length=2)(columns[:2], torch.tensor([1.0, 0.9]))
    with pytest.raises(UserError, match="one to three text columns, not 4"):
        losses.SimCSELoss(model)([*columns, columns[0]])
    with pytest.raises(UserError, match="unpad_inputs = False"):
        losses.SimCSELoss(model)([{"input_ids": torch.zeros(1, 4), "cu_seq_lens_q": torch.tensor([0, 4])}])
    model.tokenizer.padding_side = "left"
    with pytest.raises(UserError, match="padding_side = 'right'"):
        losses.SimCSELoss(model)(features(model))


def test_a_compiled_model_is_refused(base, tmp_path):
    loss = loss_of("simcse", base, base)
    with pytest.raises(UserError, match="torch_compile: the losses cannot train a compiled model"):
        train_in_trainer(loss, tmp_path, sentences(8), torch_compile=True, torch_compile_backend="eager")


def test_diffaug_refuses_gradient_checkpointing(base, model):
    loss = losses.DiffAugLoss(model, prefix_length=2)
    model.gradient_checkpointing_enable()
    with pytest.raises(UserError, match="gradient_checkpointing: diffaug does not support it"):
        loss(features(model))


def test_a_loss_for_another_model_than_the_trained_one_is_refused(base, model):
    loss = losses.SimCSELoss(sentence_transformer(base))
    loss.model = model  # as a trainer with `model_init` does
    with pytest.raises(UserError, match=r"loss=lambda model: SimCSELoss\(model\)"):
        loss(features(model))


def test_a_method_with_state_needs_the_callback_and_gets_it(base, tmp_path):
    updates = []
    training = type(losses.SimCSELoss(sentence_transformer(base)).trained)
    counting = type("Counting", (training,), {"after_update": lambda self: updates.append(1), "__module__": __name__})
    loss = loss_of("simcse", base, base)
    loss.trained.__class__ = counting
    with pytest.raises(UserError, match=r"callbacks=\[TrainingCallback\(loss\)\]"):
        train_in_trainer(loss, tmp_path, sentences(12))
    train_in_trainer(loss, tmp_path, sentences(24), callbacks=[TrainingCallback(loss)], gradient_accumulation_steps=2)
    assert len(updates) == 3


def test_labelled_pairs_train_the_classifier(base, tmp_path):
    loss = loss_of("simcse", base, base, stage="nli", nli_classes=3)
    rows = triplets(12).remove_columns("not").add_column("label", [number % 3 for number in range(12)])
    before = loss.trained.nli_classifier.output.weight.clone()
    train_in_trainer(loss, tmp_path, rows)
    assert not torch.equal(loss.trained.nli_classifier.output.weight, before)
    assert set(loss.parts.take()) == {"nli"}


def test_the_package_has_the_names_of_the_page():
    assert csezoo.TrainingCallback is TrainingCallback and callable(csezoo.for_training)
    with pytest.raises(AttributeError, match="no attribute 'trainers'"):
        csezoo.trainers  # noqa: B018
