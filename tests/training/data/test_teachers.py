"""Rank distillation from the vectors that `csezoo encode` wrote."""

import os
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from csezoo.training.cards.card_tables import command
from csezoo.training.data.teachers import Teachers
from csezoo.training.embedding.embed import embed_file
from csezoo.training.errors import UserError
from csezoo.training.recipes import load_recipe
from tests.conftest import SENTENCES
from tests.training.runs import lines, same_run, train

SIZES = (3, 5)


def encode(size):
    """An encoder whose vectors depend on the text alone."""
    return lambda texts: np.array([np.random.default_rng(list(text.encode())).normal(size=size) for text in texts])


def write_vectors(size, file, directory, **options):
    receipt = {"model_sha256": str(size), "pooling": "cls", "dtype": "float32"}
    embed_file(encode(size), receipt, str(file), directory, **options)
    return str(directory)


@pytest.fixture
def teachers(train_file, tmp_path):
    """The directories of two teachers, in shards that do not divide evenly."""
    return [write_vectors(size, train_file, tmp_path / f"teacher-{size}", shard_size=7) for size in SIZES]


def cosines(vectors):
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors @ vectors.T


def test_the_similarity_is_the_weighted_mean_of_both_teachers(teachers):
    sentences = SENTENCES[5:25]  # in another order than they were encoded in, and not all
    rows = [3, 0, 11]
    vectors = Teachers(teachers, sentences, share=0.25)[rows].numpy()
    first, second = (cosines(encode(size)([sentences[row] for row in rows])) for size in SIZES)
    np.testing.assert_allclose(cosines(vectors), 0.25 * first + 0.75 * second, atol=1e-6)


def test_one_teacher_counts_fully(teachers):
    vectors = Teachers(teachers[:1], SENTENCES[:4], share=0.25)[[0, 1]].numpy()
    np.testing.assert_allclose(cosines(vectors), cosines(encode(3)(SENTENCES[:2])), atol=1e-6)


@pytest.mark.parametrize("loss", ["listnet", "listmle"])
def test_a_run_distils_rankings_and_resumes_bit_for_bit(loss, tiny, teachers, tmp_path, train_up_to):
    recipe = tiny(teachers=teachers, rank_weight=0.5, rank_loss=loss, eval_steps=1, max_steps=3)
    train(recipe, output_dir=str(tmp_path / "whole"))
    logged = [line for line in lines(tmp_path / "whole") if "loss" in line]
    for line in logged:
        assert line["loss"] == pytest.approx(line["contrastive"] + 0.5 * line["rank"], rel=1e-5)
    train_up_to("step 2  dev", recipe)
    train(recipe)
    same_run(tmp_path / "whole", tmp_path / "run")


def test_a_card_names_the_teachers_without_their_paths(tiny, teachers, tmp_path):
    train(tiny(teachers=teachers, rank_weight=0.5, max_steps=1))
    card = (tmp_path / "run" / "best" / "README.md").read_text(encoding="utf-8")
    names = [Path(directory).name for directory in teachers]
    assert f"| teachers | {', '.join(names)} |" in card and "| teacher_share | 0.5 |" in card
    assert "RankCSE" in card
    of_zoo = load_recipe("simcse-bert-base-uncased", {"teachers": teachers, "rank_weight": 0.5})
    assert f"--teachers {' '.join(names)} " in command(of_zoo, [])
    assert str(tmp_path) not in card + (tmp_path / "run" / "results.json").read_text(encoding="utf-8")


def test_distillation_alone_needs_no_dropout(tiny, teachers, tmp_path):
    train(tiny(teachers=teachers, rank_weight=1, contrastive_weight=0, dropout=0, max_steps=1))
    assert [line["loss"] == line["rank"] for line in lines(tmp_path / "run") if "loss" in line] == [True]


def test_a_run_with_other_teachers_is_not_resumed(tiny, teachers, tmp_path, train_up_to):
    recipe = tiny(teachers=teachers[:1], rank_weight=0.5, eval_steps=1, max_steps=3)
    train_up_to("step 2  dev", recipe)
    shard = next(iter(sorted((tmp_path / "teacher-3").glob("*.parquet"))))
    shard.rename(shard.with_name("part-99999-of-99999.parquet"))  # the same vectors in another order
    with pytest.raises(UserError, match="teacher"):
        train(recipe)


def test_a_directory_without_vectors_is_refused(tiny):
    with pytest.raises(UserError, match="teachers: nothere has no Parquet files; .*csezoo encode"):
        train(tiny(teachers=["nothere"], rank_weight=1.0))


def test_a_sentence_without_a_vector_is_named(teachers):
    with pytest.raises(UserError, match=r"has no vector of the training sentence 'Something new'"):
        Teachers(teachers, ["Something new"], share=0.5)


def test_a_parquet_file_of_something_else_is_refused(tmp_path):
    datasets.Dataset.from_dict({"text": ["a"]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(UserError, match="was not written by `csezoo encode`"):
        Teachers([str(tmp_path)], ["a"], share=0.5)


def test_vectors_come_as_float32(teachers):
    assert Teachers(teachers, SENTENCES[:2], share=0.5)[[0]].dtype == torch.float32


def test_quantised_vectors_are_no_teacher(train_file, tmp_path):
    directory = write_vectors(3, train_file, tmp_path, precision="binary")
    with pytest.raises(UserError, match=r"has quantised vectors \(int8\); encode the texts to float32"):
        Teachers([directory], SENTENCES[:1], share=0.5)


def test_a_directory_with_the_characters_of_a_pattern_is_read_itself(train_file, tmp_path):
    for name, size in (("teacher1", 5), ("teacher[12]", 3)):
        directory = write_vectors(size, train_file, tmp_path / name)
    vectors = Teachers([directory], SENTENCES[:2], share=0.5)[[0, 1]]
    assert vectors.shape == (2, 3)


def test_vectors_are_known_by_their_content_and_not_by_their_time(train_file, tmp_path):
    sizes = []
    for size in (5, 3):
        shutil.rmtree(tmp_path / "teacher", ignore_errors=True)
        directory = write_vectors(size, train_file, tmp_path / "teacher")
        for shard in (tmp_path / "teacher").glob("*.parquet"):
            os.utime(shard, (1e9, 1e9))
        sizes.append(Teachers([directory], SENTENCES[:2], share=0.5)[[0, 1]].shape[1])
    assert sizes == [5, 3]
