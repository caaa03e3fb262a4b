"""Word vectors of a file and bags of words as encoders, against their definitions."""

import gzip

import numpy as np
import pytest

from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import load_encoder

GLOVE = b"the 1 0 0\ncat 0 2 0.5\nCat 9 9 9\n. . . 7 7 7\n. 0 0 3\n"


def test_the_vector_of_a_text_is_the_mean_over_its_known_words(tmp_path):
    (tmp_path / "glove.txt").write_bytes(GLOVE)
    encode, receipt = load_encoder(str(tmp_path / "glove.txt"))
    vectors = encode(["The cat.", "Cat", "unknown words", ""])
    expected = [np.mean([[1, 0, 0], [0, 2, 0.5], [0, 0, 3]], axis=0), [9, 9, 9], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(vectors, expected, atol=1e-7)
    assert receipt["kind"] == "word-vectors" and len(receipt["model_sha256"]) == 64
    assert encode([]).shape == (0, 3) and encode.count_tokens(["The cat."]) == 3


def test_the_header_of_word2vec_and_gzip_are_read(tmp_path):
    with gzip.open(tmp_path / "words.vec.gz", "wb") as file:
        file.write(b"2 3\n" + GLOVE)
    encode, _ = load_encoder(str(tmp_path / "words.vec.gz"))
    np.testing.assert_array_equal(encode(["the"]), [[1, 0, 0]])


def test_a_header_says_how_many_numbers_follow_a_word_with_spaces(tmp_path):
    (tmp_path / "words.vec").write_bytes(b"\xef\xbb\xbf2 3\nnew york 1 2 3\n\ncat 3 4 5\n")
    np.testing.assert_array_equal(load_encoder(str(tmp_path / "words.vec"))[0](["cat"]), [[3, 4, 5]])
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbfcat 3 4 5\n")
    np.testing.assert_array_equal(load_encoder(str(tmp_path / "marked.txt"))[0](["cat"]), [[3, 4, 5]])


@pytest.mark.parametrize("content", [b"the 1 2\ncat 1\n", b"the 1 x\n", b"the\n"])
def test_a_line_without_its_numbers_is_named(tmp_path, content):
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"bad.txt, line \d: expected a word and"):
        load_encoder(str(tmp_path / "bad.txt"))


# gzip writes the time into its first bytes, and the processes of pytest-xdist must agree on the names of tests.
@pytest.mark.parametrize("content", [gzip.compress(GLOVE)[:-9], b"not gzip\n"], ids=["cut", "not gzip"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "glove.txt.gz").write_bytes(content)
    with pytest.raises(UserError, match="glove.txt.gz cannot be read"):
        load_encoder(str(tmp_path / "glove.txt.gz"))


@pytest.mark.parametrize(
    ("option", "says"), [({"pooling": "mean"}, "defines its pooling itself"), ({"dtype": "bfloat16"}, "are float32")]
)
def test_options_of_an_encoder_are_refused_for_a_bag_of_words(option, says):
    with pytest.raises(UserError, match=says):
        load_encoder("bag-of-words", **option)


def test_the_cosine_of_bags_of_words_counts_shared_words():
    encode, _ = load_encoder("bag-of-words")
    a, b = encode(["A small small cat sits.", "the Cat sits on a mat"]).astype(np.float64)
    words = {"a", "small", "cat", "sits", "."}, {"the", "cat", "sits", "on", "a", "mat"}
    cosine = len(words[0] & words[1]) / np.sqrt(len(words[0]) * len(words[1]))
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) == pytest.approx(cosine, abs=1e-12)
