"""The names of the suites and of their tasks, and the sizes of the STS data. Imports nothing that takes time."""

# What `csezoo evaluate --suite` takes.
SUITES: tuple[str, ...] = (
    "sts",
    "sts-dev",
    "sickr-dev",
    "transfer",
    "transfer-fast",
    "transfer-mlp",
    "trec-length",
    "sts-length",
    "sts-multilingual",
    "sts-spanish",
    "chinese",
    "geometry",
    "retrieval",
    "cost",
    "edits",
)

SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "OnWN", "images", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
STS_TASKS = (*SUBSETS, "STSBenchmark", "SICK-R")
DEV_TASK = "STSBenchmark-dev"
SICKR_DEV_TASK = "SICK-R-dev"
# Pairs with a score.
RELEASED_PAIRS = {
    "STS12": 3108,
    "STS13": 1500,
    "STS14": 3750,
    "STS15": 3000,
    "STS16": 1186,
    "STSBenchmark": 1379,
    "SICK-R": 4927,
    SICKR_DEV_TASK: 500,
    DEV_TASK: 1500,
    "STSBenchmark-train": 5749,
    "SICK-R-train": 4500,
}
TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
