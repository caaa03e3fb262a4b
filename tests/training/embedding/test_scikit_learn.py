"""The scikit-learn transformer keeps scikit-learn's contracts, and has the model's vectors."""

import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from csezoo.modeling.contrastive.published import load_published
from csezoo.training.embedding.scikit_learn import SentenceEncoderTransformer
from csezoo.training.errors import UserError
from tests.conftest import SENTENCES
from tests.repositories import tiny_repository

TEXTS = [*SENTENCES[:20], "", "the cat"]
# The checks of scikit-learn that use no table of numbers. `check_estimator` runs none on an estimator of texts.
CHECKS = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_repository(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_checks_of_scikit_learn_that_apply_to_texts(check, model):
    getattr(estimator_checks, check)("SentenceEncoderTransformer", SentenceEncoderTransformer(model))


@pytest.mark.parametrize("container", [list, np.array, pd.Series, tuple, iter])
def test_it_has_the_vectors_of_the_model(container, model):
    expected = load_published(model).encode(TEXTS)
    transformer = SentenceEncoderTransformer(model)
    vectors = transformer.fit_transform(container(TEXTS))
    assert vectors.dtype == np.float32 and vectors.shape == (22, 32)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    np.testing.assert_array_equal(SentenceEncoderTransformer(model).transform(TEXTS), vectors)  # nothing is learned
    check_is_fitted(SentenceEncoderTransformer(model))


def test_vectors_are_truncated_and_normalised_and_their_features_have_names(model):
    transformer = SentenceEncoderTransformer(model, truncate_dim=5, normalize_embeddings=True)
    vectors = transformer.transform(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    names = transformer.get_feature_names_out()
    assert names.tolist() == [f"sentenceencodertransformer{number}" for number in range(5)]
    frame = transformer.set_output(transform="pandas").fit_transform(pd.Series(TEXTS))
    assert frame.columns.tolist() == names.tolist()
    np.testing.assert_array_equal(frame, vectors)


def test_a_pickle_has_no_weights_and_returns_the_same_vectors(model):
    transformer = SentenceEncoderTransformer(model).fit(TEXTS)
    pickled = pickle.dumps(transformer)
    assert len(pickled) < 1000
    loaded = pickle.loads(pickled)  # noqa: S301 (made here)
    np.testing.assert_array_equal(loaded.transform(TEXTS), transformer.transform(TEXTS))
    assert clone(transformer).get_params() == transformer.get_params()


def test_it_works_in_a_pipeline_a_grid_search_and_a_column_transformer(model):
    texts = pd.Series(SENTENCES[:24], name="text")
    labels = ["cat" in text for text in texts]
    pipeline = make_pipeline(SentenceEncoderTransformer(model), LogisticRegression(max_iter=1000))
    search = GridSearchCV(pipeline, {"sentenceencodertransformer__truncate_dim": [4, 32]}, cv=2).fit(texts, labels)
    assert set(search.cv_results_["param_sentenceencodertransformer__truncate_dim"]) == {4, 32}
    table = pd.DataFrame({"text": texts, "length": texts.str.len()})
    short = SentenceEncoderTransformer(model, truncate_dim=4)
    columns = make_column_transformer((short, "text"), ("passthrough", ["length"]))
    assert columns.fit_transform(table).shape == (24, 5)


def test_a_model_that_was_written_again_has_its_new_vectors(model, tmp_path):
    directory = shutil.copytree(model, tmp_path / "model")
    transformer = SentenceEncoderTransformer(str(directory))
    old = transformer.transform(TEXTS)
    np.testing.assert_array_equal(old, SentenceEncoderTransformer(model).transform(TEXTS))
    changed = {name: 2 * tensor for name, tensor in load_file(directory / "model.safetensors").items()}
    save_file(changed, directory / "model.safetensors", metadata={"format": "pt"})
    new = transformer.transform(TEXTS)
    np.testing.assert_allclose(new, load_published(directory).encode(TEXTS), atol=1e-5)
    assert not np.allclose(new, old, atol=1e-3)


def test_what_is_no_list_of_texts_or_no_model_is_refused(model):
    transformer = SentenceEncoderTransformer(model)
    with pytest.raises(ValueError, match="X: expected texts, got one string"):
        transformer.transform("the cat")
    with pytest.raises(TypeError, match="texts: item 1 is 3, not a string"):
        transformer.fit(["the cat", 3])
    with pytest.raises(TypeError, match="got DataFrame; give one column of it"):
        transformer.transform(pd.DataFrame({"text": ["the cat"]}))
    with pytest.raises(ValueError, match="truncate_dim: -1 must be at least 1"):
        SentenceEncoderTransformer(model, truncate_dim=-1).transform(["the cat"])
    with pytest.raises(ValueError, match="truncate_dim: 33 must be at most 32, the dimensions of the model"):
        SentenceEncoderTransformer(model, truncate_dim=33).transform(["the cat"])
    with pytest.raises(UserError, match="nothing/here"):
        SentenceEncoderTransformer("./nothing/here").fit(TEXTS)
