"""SentEval's files for STS, with the rows of the releases and sentences that are in no other pair."""

# Pairs of each sub-set as released. SentEval leaves out STS13's SMT because of its licence.
YEARS = {
    "STS12": {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750, "surprise.SMTnews": 399},
    "STS13": {"FNWN": 189, "headlines": 750, "OnWN": 561},
    "STS14": {"deft-forum": 450, "deft-news": 300, "headlines": 750, "OnWN": 750, "images": 750, "tweet-news": 750},
    "STS15": {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
    "STS16": {
        "answer-answer": 254,
        "headlines": 249,
        "plagiarism": 230,
        "postediting": 244,
        "question-question": 209,
    },
}
PARTLY_SCORED = ("STS15", "STS16")


def text(*where) -> tuple[str, str]:
    """Two sentences that are in no other pair, with irregular white space as in the releases."""
    place = " ".join(map(str, where))
    return f"first  of {place} ", f"second of\u00a0{place}"


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_senteval(directory):
    """Write every file SentEval reads for STS, with the released number of rows."""
    root = directory / "downstream"
    for year, subsets in YEARS.items():
        folder = root / "STS" / f"{year}-en-test"
        for subset, count in subsets.items():
            pairs, scores = [], []
            for n in range(count):
                pairs.append("\t".join(text(year, subset, n)))
                scores.append(str(n % 6))
                if year in PARTLY_SCORED and n % 2 == 0:  # an unscored pair follows, also in the last line
                    pairs.append("\t".join(text("unscored", n)))
                    scores.append("")
            if year == "STS16":  # its lines end with the sources
                pairs = [f"{pair}\tsource one\tsource two" for pair in pairs]
            write(folder / f"STS.input.{subset}.txt", pairs)
            write(folder / f"STS.gs.{subset}.txt", scores)
    for part, count in (("dev", 1500), ("test", 1379), ("train", 5749)):
        # Quotes are literal, even if they are not closed.
        pairs = [("genre", "file", "year", str(n), f"{n % 6}.500", f'"{part} {n}', 'a "b" c') for n in range(count)]
        write(root / "STS" / "STSBenchmark" / f"sts-{part}.csv", map("\t".join, pairs))
    rows = [(str(n), *text("SICK", n), f"{1 + n % 4}.6", "NEUTRAL") for n in range(4927)]
    header = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment")
    write(root / "SICK" / "SICK_test_annotated.txt", map("\t".join, [header, *rows]))
    write(root / "SICK" / "SICK_trial.txt", map("\t".join, [header, *rows[:500]]))
    write(root / "SICK" / "SICK_train.txt", map("\t".join, [header, *rows[:4500]]))
    return root.parent


def respaced(pair):
    return tuple(" ".join(sentence.split()) for sentence in pair)
