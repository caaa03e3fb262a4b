"""Checksums of the tasks in SentEval's files as released, to detect altered data."""

from __future__ import annotations

from pathlib import Path

# Checksums of sentences and labels, as in `receipt()`. STS12–16 and the transfer tasks are the same in every copy that
# was compared. Copies of STS-B, SICK and MRPC differ in their tokenisation.
RELEASED = {
    "STS12": "d4ca46a4c65fd2ec365b586ab0cfb6fdb488eb0e73e59b659be093cf983fe541",
    "STS13": "520180e37314c5e85bd88c16ae66b1bfe22a11101d896b682828f3ae623074d7",
    "STS14": "f267de18dbca13b578c50e2d712b17ba81786e4a334d17f31f21485a20b6078f",
    "STS15": "99614584f802666648e46807aa603a5dcf76e2b4bcf04a3e4d70a3ec4050215b",
    "STS16": "89b748567ad7d025f803090213cc0b1df429840f40aca240236f1245dd90e6a6",
    "STSBenchmark": "d1cc50f1d1eca68102e6fc6460462dde2c72050c325c96f0a5f760b283f6ede7",
    "STSBenchmark-dev": "0c3e6d244ecd507d451733be3322c204e0d750783c9342b2653ab82b31409fe0",
    "SICK-R": "59d25a2c06d17ca8d7498a899cfc55642ea3c18334e1f7dc50d888fc4d3b6927",
    "MR": "6f21e7f42cee709c877e8abd6b1187b9b214e1a2194ecd7dbdefe11dbecd5d28",
    "CR": "899abed3b851088b25d52c7c01526378d1c6627768fe6a0348ec75e7ea2bab0a",
    "SUBJ": "40703ede7b6c288bd8647b7f39e43a498ad695fcc3277a14780c0617e22c8264",
    "MPQA": "cfeff9d54bceceb3cf1bd517a13a29405716bb422eb6273aff875a50bdc7011a",
    "SST2": "2cd16da5aa1d246c3a321705afb392c03442eb0afde5bf3410f011dfa6541680",
    "TREC": "7bf5d08872c652659660a7050d41dfcd15bf4a1a7e62454f252788cfac4ae796",
    "MRPC": "53cd150f377db4e54116c77386b1bea77de3eeffac3c2188318d9b19cbc57e2d",
}


def compare_with_release(task: str, receipt: dict) -> dict[str, bool]:
    """Compare a task's checksum with that of the release; return `as_released`, or nothing if no checksum is known.

    A file of pairs is not the task that it is called by.

    Example:
        >>> compare_with_release("MR", {"dataset": "SentEval MR", "sha256": "0" * 64})
        {'as_released': False}
        >>> compare_with_release("MR", {"dataset": "MR.csv", "sha256": "0" * 64})
        {}
    """
    if task not in RELEASED or receipt["dataset"].startswith("mteb/") or Path(receipt["dataset"]).stem == task:
        return {}
    return {"as_released": receipt["sha256"] == RELEASED[task]}
