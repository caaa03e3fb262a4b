"""IS-BERT: its n-gram features and its loss against independent float64 implementations."""

import numpy as np
import pytest
import torch

from csezoo.modeling.methods.isbert.model import jensen_shannon
from tests.tiny import batch, training_model


def ngram_features(hidden: np.ndarray, convolutions: torch.nn.ModuleList, activation: str) -> np.ndarray:
    """The features (l, H) of a sentence's token vectors (l, H), n-gram by n-gram."""
    rows = []
    for middle in range(len(hidden)):
        row = []
        for convolution in convolutions:
            weight, bias = convolution.weight.detach().numpy(), convolution.bias.detach().numpy()  # (F, H, k), (F,)
            total = bias.copy()
            for place in range(weight.shape[2]):
                token = middle + place - weight.shape[2] // 2
                if 0 <= token < len(hidden):
                    total += weight[:, :, place] @ hidden[token]
            row.append(np.maximum(total, 0) if activation == "relu" else total)
        rows.append(np.concatenate(row))
    return np.stack(rows)


def information_loss(features: list[np.ndarray], same: set[tuple[int, int]] = frozenset()) -> float:
    """The loss of sentences with these features (l, H): minus the estimate, pair by pair."""
    own, others = [], []
    for sentence, of_sentence in enumerate(features):
        vector = of_sentence.mean(0)
        for owner, of_owner in enumerate(features):
            for feature in of_owner:
                if owner == sentence:
                    own.append(np.log1p(np.exp(-feature @ vector)))
                elif (owner, sentence) not in same:
                    others.append(np.log1p(np.exp(feature @ vector)))
    return float(np.mean(own) + np.mean(others))


@pytest.mark.parametrize("kernel_sizes", [[1, 3, 5], [3]])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("mini_batch_size", [None, 2])
def test_loss_and_vectors_are_those_of_the_formulas(kernel_sizes, activation, mini_batch_size):
    trained, rows = training_model("isbert", kernel_sizes=kernel_sizes, activation=activation).train(), batch()
    trained.mini_batch_size = mini_batch_size
    ids, mask = rows["input_ids"][:, :1], rows["attention_mask"][:, :1]
    assert len(set(mask.sum(2).flatten().tolist())) > 1, "sentences of several lengths"
    features = []
    for sentence, real in zip(ids[:, 0], mask[:, 0], strict=True):
        hidden = trained.model.backbone(input_ids=sentence[None, : real.sum()]).last_hidden_state[0]
        features.append(ngram_features(hidden.detach().numpy(), trained.model.ngrams.convolutions, activation))
    output = trained(input_ids=ids, attention_mask=mask)
    assert output.loss.item() == pytest.approx(information_loss(features), rel=1e-10)
    served = trained.eval().model(input_ids=ids[:, 0], attention_mask=mask[:, 0], output_hidden_states=True)
    expected = np.stack([of_sentence.mean(0) for of_sentence in features])
    np.testing.assert_allclose(served.pooler_output.detach().numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(output.embeddings[:, 0].detach().numpy(), expected, atol=1e-12)
    assert torch.equal(served.hidden_states[-1], served.last_hidden_state)
    np.testing.assert_allclose(served.last_hidden_state[0, : mask[0].sum()].detach().numpy(), features[0], atol=1e-12)


def test_equal_sentences_are_not_each_other_s_negatives():
    draw = np.random.default_rng(0)
    features = [np.abs(draw.normal(size=(length, 4))) for length in (2, 3, 1)]
    sentences = torch.from_numpy(np.stack([each.mean(0) for each in features]))
    owners = torch.tensor([0, 0, 1, 1, 1, 2])
    twins = torch.zeros(3, 3, dtype=torch.bool)
    twins[0, 1] = twins[1, 0] = True
    loss = jensen_shannon(sentences, torch.from_numpy(np.concatenate(features)), owners, twins)
    assert loss.item() == pytest.approx(information_loss(features, {(0, 1), (1, 0)}), rel=1e-12)


def test_a_single_sentence_has_only_positives():
    sentence = torch.tensor([[1.0, 2.0]])
    loss = jensen_shannon(sentence, sentence, torch.tensor([0]))
    assert loss.item() == pytest.approx(np.log1p(np.exp(-5)), rel=1e-5)


def test_the_convolutions_start_as_those_of_the_release():
    """torch draws them from U(-1/sqrt(k H), 1/sqrt(k H)); transformers from N(0, 0.02), here four times as narrow."""
    for convolution in training_model("isbert").model.ngrams.convolutions:
        limit = (convolution.kernel_size[0] * 32) ** -0.5
        assert 0.9 * limit < convolution.weight.abs().max() <= limit and 0 < convolution.bias.abs().max() <= limit


def test_features_that_do_not_count_change_nothing():
    """On a device, features of padding stay in the batch, because their number would have to be waited for."""
    torch.manual_seed(0)
    sentences, features = torch.randn(3, 4), torch.randn(7, 4)
    owners, real = torch.tensor([0, 0, 1, 1, 2, 2, 2]), torch.tensor([1, 0, 1, 1, 1, 0, 0]).bool()
    duplicates = torch.eye(3).flip(0).bool()
    loss = jensen_shannon(sentences, features, owners, duplicates, real=real)
    torch.testing.assert_close(loss, jensen_shannon(sentences, features[real], owners[real], duplicates))
