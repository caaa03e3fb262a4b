from datasets import Dataset
from embedding import embed_all
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import SentenceTransformerEncoderWrapper
from torch.utils.data import DataLoader

UNKNOWN = "reference date domains task_subtypes license annotations_creators dialect sample_creation".split()
TASK = TaskMetadata(
    name="Texts",
    description="Texts.",
    dataset={"path": "texts", "revision": "main"},
    type="STS",
    category="t2t",
    modalities=["text"],
    eval_splits=["test"],
    eval_langs=["eng-Latn"],
    main_score="cosine_spearman",
    bibtex_citation="",
    **dict.fromkeys(UNKNOWN),
)


def load(directory):
    # What `mteb.get_model` uses for a repository on the Hub.
    model = SentenceTransformerEncoderWrapper(str(directory), device="cpu")

    def encode(texts):
        batches = DataLoader(Dataset.from_dict({"text": texts}), batch_size=32)
        return model.encode(batches, task_metadata=TASK, hf_split="test", hf_subset="default")

    return encode


embed_all(load, "mteb", "sentence-transformers")
