"""A checkpoint and its export work alike in transformers pipelines and in MTEB."""

import shutil
import sys

import numpy as np
import pytest

from csezoo.training.publishing.export import export
from tests.clean_interpreter import run_without_csezoo
from tests.conftest import SENTENCES
from tests.foreign_clients.running import SCRIPTS
from tests.training.publishing.test_export import save

TEXTS = SENTENCES[:3]
MTEB = f"""
import json, sys
import mteb
from mteb.abstasks.sts import AbsTaskSTS
from sentence_transformers import SentenceTransformer

sys.path.append({str(SCRIPTS)!r})
from mteb_task import description

class LocalPairs(AbsTaskSTS):
    metadata = description("LocalPairs", "pairs")

models = [SentenceTransformer("code", trust_remote_code=True), SentenceTransformer("plain")]
results = [mteb.evaluate(model, LocalPairs(), cache=None, show_progress_bar=False) for model in models]
print(json.dumps([result.task_results[0].get_score() for result in results]))
"""


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    """A directory with a checkpoint in `code` and its export in `plain`."""
    directory = tmp_path_factory.mktemp("doors")
    source = save(directory / "code", "prompt", "roberta")
    export(str(source), str(directory / "plain"))
    return directory


@pytest.mark.slow
def test_a_feature_extraction_pipeline_returns_the_same_token_vectors_from_both(doors):
    code = f"""
import json
from transformers import AutoModel, AutoTokenizer, pipeline
results = []
for door, trust in (("code", True), ("plain", False)):
    tokens = pipeline("feature-extraction", model=door, trust_remote_code=trust)({TEXTS})
    batch = AutoTokenizer.from_pretrained(door, trust_remote_code=trust)({TEXTS[0]!r}, return_tensors="pt")
    first = AutoModel.from_pretrained(door, trust_remote_code=trust)(**batch).last_hidden_state
    results.append([tokens, first.tolist()])
print(json.dumps(results))
"""
    (with_code, with_code_first), (plain, plain_first) = run_without_csezoo(code, doors)
    np.testing.assert_allclose(with_code[0], with_code_first, atol=1e-5, rtol=0)
    np.testing.assert_allclose(plain[0], plain_first, atol=1e-5, rtol=0)
    for one, other in zip(with_code, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=0)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="MTEB NOT TESTED: it needs Python 3.11")
def test_mteb_gives_both_the_same_score(doors, dev_file):
    (doors / "pairs").mkdir()
    shutil.copy(dev_file, doors / "pairs" / "test.csv")
    with_code, plain = run_without_csezoo(MTEB, doors)
    assert with_code == pytest.approx(plain, abs=1e-3)
    assert 0 < abs(with_code) <= 1
