"""The class of a published repository in threads, after its directory is gone, and traced."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from csezoo.modeling.contrastive.published import load_published
from tests.conftest import SENTENCES
from tests.repositories import PROMPT, tiny_repository

TEXTS = ["", "cat", *SENTENCES[:6], "the small cat " * 40]


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    changes = {**PROMPT, "projection_at_test": True, "whitening_size": 8}
    return tiny_repository(tmp_path_factory.mktemp("serving") / "model", **changes)


@pytest.fixture
def model(repository):
    return load_published(repository)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=0)


def test_threads_encode_while_another_one_calls_the_tokenizer(repository, model):
    expected, tokenizer = load_published(repository).encode(TEXTS), model.tokenizer
    lengths, stopped = [], threading.Event()

    def tokenise():
        number = 0
        while not stopped.is_set():
            number += 1
            batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=12 + number % 9)
            lengths.append((12 + number % 9, {len(ids) for ids in batch.input_ids}))

    with ThreadPoolExecutor(5) as pool:
        other = pool.submit(tokenise)
        calls = [pool.submit(model.encode, TEXTS, batch_size=1 + number % 4) for number in range(24)]
        try:
            for call in calls:
                close(call.result(), expected)
        finally:
            stopped.set()
        other.result()
    assert lengths and all(found == {longest} for longest, found in lengths), "the other thread got what it asked for"


def test_a_model_in_training_encodes_without_dropout_in_four_threads_and_stays_in_training(repository, model):
    expected = load_published(repository).encode(TEXTS)
    model.train()
    batch = model.tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    assert np.abs(model(**batch).pooler_output.detach().numpy() - expected).max() > 1e-3, "dropout is on"
    seen = []
    model.backbone.register_forward_hook(lambda module, inputs, output: seen.append(module.training))
    with ThreadPoolExecutor(4) as pool:
        for call in [pool.submit(model.encode, TEXTS, batch_size=2) for _ in range(12)]:
            close(call.result(), expected)
    assert seen and not any(seen)
    assert model.training and all(module.training for module in model.modules())
    model.eval()
    model.encode("cat")
    assert not model.training


def test_the_mode_comes_back_after_an_error(model):
    model.train()
    model.resize_token_embeddings(2)
    with pytest.raises(IndexError):
        model.encode("cat")
    assert model.training


def test_another_working_directory_and_a_deleted_repository_change_nothing(repository, tmp_path, monkeypatch):
    shutil.copytree(repository, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    model = load_published("model")
    expected = model.encode(TEXTS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(model.verify()) == 2
    shutil.rmtree(tmp_path / "model")
    np.testing.assert_array_equal(model.encode(TEXTS), expected)
    model.save_pretrained("again")
    np.testing.assert_array_equal(load_published("again").encode(TEXTS), expected)
    with pytest.raises(OSError, match=str(tmp_path / "model")):
        model.verify()


@pytest.mark.filterwarnings("ignore")  # the tracer is deprecated, reads deprecated properties, and warns of branches
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("roberta", PROMPT),
        ("bert", {"pooling": "mean", "projection": "none"}),
        ("bert", {"pooling": "last"}),
        ("bert", {"pooling": "first_last_mean", "whitening_size": 8}),
        ("Qwen3", {"pooling": "last"}),
    ],
)
def test_a_trace_of_a_padded_batch_has_the_vectors_of_batches_of_other_lengths(kind, changes, tmp_path):
    model = load_published(tiny_repository(tmp_path, kind=kind, **changes))

    def batch(texts):
        tokens = model.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        return tokens["input_ids"], tokens["attention_mask"]

    class Vectors(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask).pooler_output

    with torch.no_grad():
        traced = torch.jit.trace(Vectors().eval(), batch(TEXTS[:4]))
        for texts in (TEXTS[2:5], TEXTS[1:2], TEXTS):
            close(traced(*batch(texts)), model.encode(texts))


def test_outputs_can_be_a_tuple_and_have_what_is_asked_for(model):
    batch = model.tokenizer(TEXTS[1:4], padding=True, return_tensors="pt")
    output = model(**batch, output_hidden_states=True)
    assert len(output.hidden_states) == 4 and torch.equal(output.hidden_states[-1], output.last_hidden_state)
    states, pooled = model(**batch, return_dict=False)
    assert torch.equal(states, output.last_hidden_state) and torch.equal(pooled, output.pooler_output)
    assert output.pooler_output.shape == (3, 8) and model.embedding_size == 8


def test_input_that_a_vector_cannot_be_pooled_from_is_refused(model):
    mask = model.mask_token_id
    for row in ([1, mask + 1], [1, 2], [mask + 1, mask + 1]):  # tokens of smaller and of larger ids
        with pytest.raises(ValueError, match="needs a mask token in every row; use the tokenizer saved with this"):
            model(input_ids=torch.tensor([[mask, mask], row]))
    with pytest.raises(ValueError, match="inputs_embeds: prompt pooling needs the mask token; pass input_ids"):
        model(inputs_embeds=torch.zeros(1, 2, 32))
    with pytest.raises(ValueError, match="input_ids: not given"):
        model()
