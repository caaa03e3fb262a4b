"""The quickstart's world is reproducible and readable, keeps test events out of training, and grades by meaning."""

import csv
import random
import re

import pytest

from csezoo.training.quickstart import world as qw
from csezoo.training.quickstart.world import Event, Frame, grade, make_world, write_world

CHOPPING = Frame(
    Event("kitchen", "chef/cook", "chop/slice", "onions"), place="at home", time="at noon", manner="alone"
)


@pytest.fixture(scope="module")
def world():
    return make_world(seed=1, sentences=2000, pairs=200, triplets=100)


def test_the_same_seed_makes_the_same_world(world):
    assert make_world(seed=1, sentences=2000, pairs=200, triplets=100) == world
    assert make_world(seed=2, sentences=2000, pairs=200, triplets=100).train != world.train


def test_a_world_has_the_requested_sizes(world):
    assert [len(world.train), len(world.dev), len(world.test), len(world.triplets)] == [2000, 200, 200, 100]
    assert len(set(world.train)) == 2000


def test_no_event_occurs_in_two_splits(monkeypatch):
    events, splits = {"train": set(), "dev": set(), "test": set()}, iter(["dev", "test"])
    split = "train"
    say, pairs = qw._say, qw._pairs

    def recording_say(rng, frame):
        events[split].add(frame.event)
        return say(rng, frame)

    def recording_pairs(*args):
        nonlocal split
        split = next(splits)
        result = pairs(*args)
        split = "train"  # the triplets come last and use training events
        return result

    monkeypatch.setattr(qw, "_say", recording_say)
    monkeypatch.setattr(qw, "_pairs", recording_pairs)
    make_world(seed=3, sentences=2000, pairs=200, triplets=200)
    assert all(events.values())
    assert events["train"].isdisjoint(events["dev"] | events["test"]) and events["dev"].isdisjoint(events["test"])


def test_a_held_out_event_has_only_facts_that_training_has_too():
    events = list(qw._QUALITIES)
    random.Random(4).shuffle(events)
    dev, test, train = qw._split(events)
    assert set(dev) | set(test) | set(train) == set(events) and len(dev) == len(test) == len(events) * 15 // 100
    for fact in qw.FACTS:
        known = {getattr(event, fact) for event in train}
        assert {getattr(event, fact) for event in dev + test} <= known


def test_a_contradiction_changes_one_fact_or_negates(monkeypatch):
    alike, frames = qw._alike(list(qw._QUALITIES)), []
    monkeypatch.setattr(qw, "_say", lambda rng, frame: frames.append(frame))
    for seed in range(200):
        qw._triplet(random.Random(seed), alike)
    negated = 0
    for premise, entailed, contradiction in zip(*[iter(frames)] * 3, strict=True):
        assert entailed.event == premise.event and not entailed.negated
        assert all(getattr(entailed, name) in (None, getattr(premise, name)) for name in ("place", *qw.DETAILS))
        differing = sum(ours != theirs for ours, theirs in zip(premise.event, contradiction.event, strict=True))
        assert (differing, contradiction.negated) in ((0, True), (1, False))
        negated += contradiction.negated
    assert 10 < negated < 60, "about one in seven"


@pytest.mark.parametrize(
    ("changes", "score"),
    [
        ({}, 5.0),
        ({"time": "yesterday"}, 4.0),
        ({"place": None}, 4.0),
        ({"time": None, "manner": None}, 3.5),
        ({"place": "at the inn"}, 3.0),
        ({"event": CHOPPING.event._replace(agent="waiter")}, 3.0),
        ({"event": CHOPPING.event._replace(agent="waiter"), "place": "at the inn"}, 2.5),
        ({"event": CHOPPING.event._replace(action="burn")}, 2.0),
        ({"negated": True}, 2.0),
        ({"event": CHOPPING.event._replace(action="burn", agent="waiter")}, 1.5),
        ({"event": Event("kitchen", "waiter", "burn", "pie")}, 1.0),
        ({"event": Event("sport", "chef/cook", "win", "race")}, 0.0),
    ],
)
def test_the_score_depends_on_the_facts_in_common(changes, score):
    other = CHOPPING._replace(**changes)
    assert grade(CHOPPING, other) == grade(other, CHOPPING) == score


def test_a_pair_has_two_different_sentences_and_every_grade_occurs(world):
    assert all(first != second for first, second, _ in world.dev + world.test)
    assert {0.0, 1.0, 2.0, 3.0, 4.0, 5.0} <= {score for *_, score in world.dev}


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("cut up", ("cut up", "cut up", "cutting up")),
        ("chop", ("chopped", "chopped", "chopping")),
        ("carry", ("carried", "carried", "carrying")),
        ("free", ("freed", "freed", "freeing")),
        ("write", ("wrote", "written", "writing")),
        ("fix", ("fixed", "fixed", "fixing")),
        ("play", ("played", "played", "playing")),
    ],
)
def test_verbs_are_inflected(verb, forms):
    assert qw._inflect(verb) == forms


def test_sentences_have_a_capital_a_full_stop_and_fitting_articles(world):
    for text in world.train:
        assert re.fullmatch(r"[A-Z][A-Za-z', -]*\.", text), text
        assert "  " not in text and " ," not in text and not re.search(r"\ba [aeio]|\ban [^aeiou]", text), text


def test_the_files_of_a_world_are_utf8_with_lf(world, tmp_path):
    write_world(world, tmp_path)
    assert (tmp_path / "train.txt").read_bytes() == "".join(f"{text}\n" for text in world.train).encode()
    for name, header in [
        ("dev", ["sentence1", "sentence2", "score"]),
        ("nli_triplets", ["sent0", "sent1", "hard_neg"]),
    ]:
        content = (tmp_path / f"{name}.csv").read_bytes()
        assert b"\r" not in content
        assert next(csv.reader(content.decode().splitlines())) == header
    rows = list(csv.reader((tmp_path / "dev.csv").read_text("utf-8").splitlines()))[1:]
    assert [(first, second, float(score)) for first, second, score in rows] == world.dev
