"""Both doors to a checkpoint, with its code and without, where others come to use it: pipelines and MTEB."""

import shutil
import sys

import numpy as np
import pytest

from csezoo.training.publishing.export import export
from tests.clean_interpreter import run_without_csezoo
from tests.conftest import SENTENCES
from tests.training.publishing.test_export import save

TEXTS = SENTENCES[:3]
MTEB = """
import json
import mteb
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from sentence_transformers import SentenceTransformer

NOT_SAID = "reference date domains task_subtypes license annotations_creators dialect sample_creation".split()

class LocalPairs(AbsTaskSTS):
    metadata = TaskMetadata(
        name="LocalPairs",
        description="Pairs scored by the words they share.",
        dataset={"path": "pairs", "revision": "main"},
        type="STS",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
        bibtex_citation="",
        **dict.fromkeys(NOT_SAID),
    )

models = [SentenceTransformer("code", trust_remote_code=True), SentenceTransformer("plain")]
results = [mteb.evaluate(model, LocalPairs(), cache=None, show_progress_bar=False) for model in models]
print(json.dumps([result.task_results[0].get_score() for result in results]))
"""


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    """A directory that holds a checkpoint under `code` and its export under `plain`."""
    directory = tmp_path_factory.mktemp("doors")
    source = save(directory / "code", "prompt", "roberta")
    export(str(source), str(directory / "plain"))
    return directory


def test_a_feature_extraction_pipeline_gives_the_token_vectors_through_both(doors):
    code = f"""
import json
from transformers import AutoModel, AutoTokenizer, pipeline
found = []
for door, trust in (("code", True), ("plain", False)):
    tokens = pipeline("feature-extraction", model=door, trust_remote_code=trust)({TEXTS})
    batch = AutoTokenizer.from_pretrained(door, trust_remote_code=trust)({TEXTS[0]!r}, return_tensors="pt")
    first = AutoModel.from_pretrained(door, trust_remote_code=trust)(**batch).last_hidden_state
    found.append([tokens, first.tolist()])
print(json.dumps(found))
"""
    (with_code, its_own), (plain, own) = run_without_csezoo(code, doors)
    np.testing.assert_allclose(with_code[0], its_own, atol=1e-5, rtol=0)
    np.testing.assert_allclose(plain[0], own, atol=1e-5, rtol=0)
    for one, other in zip(with_code, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=0)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="MTEB NOT TESTED: it needs Python 3.11")
def test_mteb_scores_both_alike_on_a_task_of_local_data(doors, dev_file):
    (doors / "pairs").mkdir()
    shutil.copy(dev_file, doors / "pairs" / "test.csv")
    with_code, plain = run_without_csezoo(MTEB, doors)
    assert with_code == pytest.approx(plain, abs=1e-3)
    assert 0 < abs(with_code) <= 1
