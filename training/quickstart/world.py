"""A small English world for the `quickstart` recipe: sentences, graded pairs and NLI triplets, without a download.

The world consists of *events*: somebody (agent) does something (action) to something (patient) somewhere (place). A
sentence may add a time, a manner, a trait of the agent and a quality of the patient. A fact is stored as the list of
its synonyms, `"chop/slice/cut up"`. Two sentences mean the same if their facts are equal, whatever their words are.
`grade` computes the gold score of a pair from the facts, never from the words.
"""

from __future__ import annotations

import csv
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .words import (
    ENDS,
    IRREGULAR,
    IRREGULAR_PLURALS,
    LEADS,
    MANNERS,
    MISHAP_MANNERS,
    MISHAPS,
    SYNONYMS,
    TIMES,
    TOPICS,
    TRAITS,
    WEATHER_MANNERS,
    WEATHER_TRAITS,
    items,
)

# ---- facts ----------------------------------------------------------------------------------------------------------


class Event(NamedTuple):
    """Who did what to whom. Events are split, so that no event of dev or test occurs in training."""

    topic: str
    agent: str
    action: str
    patient: str


class Frame(NamedTuple):
    """An event with its details; `None` for a detail that the sentence leaves out."""

    event: Event
    place: str | None = None
    time: str | None = None
    manner: str | None = None
    trait: str | None = None  # of the agent
    quality: str | None = None  # of the patient
    negated: bool = False


FACTS = ("agent", "action", "patient")
DETAILS = ("time", "manner", "trait", "quality")


_THESAURUS = {concept.split("/")[0]: concept for concept in SYNONYMS}
_FORMS = {verb.split()[0]: verb.split() for verb in IRREGULAR}
_PLACES: dict[str, list[str]] = {}
_QUALITIES: dict[Event, list[str]] = {}  # every event of the world, with the qualities its patient may have


def _read_topics() -> None:
    for topic, text in TOPICS.items():
        places, *lines = text.strip().splitlines()
        _PLACES[topic] = items(places)
        for line in lines:
            who, what, whom, how = line.split(" > ")
            agents, patients, qualities = ([_THESAURUS.get(word, word) for word in items(f)] for f in (who, whom, how))
            for action in items(what, "~"):
                for agent in agents:
                    for patient in patients:
                        _QUALITIES[Event(topic, agent, action, patient)] = qualities


_read_topics()


def grade(first: Frame, second: Frame) -> float:
    """Grade the similarity of two frames by their facts, on the 0-5 scale of the STS and SICK guidelines.

    | score | meaning |
    |---|---|
    | 5 | the same event |
    | 4, 3.5 | one detail, or several, differ or are left out (time, manner, trait, quality; place left out) |
    | 3, 2.5 | the same action on the same thing; the agent or the place differs, or both |
    | 2, 1.5 | another event that shares two, or one, of agent, action and patient; also 2 if one is negated |
    | 1 | only the same topic |
    | 0 | unrelated |

    Example:
        >>> chopping = Frame(Event("kitchen", "chef/cook", "chop/slice", "onions"), time="yesterday")
        >>> grade(chopping, chopping._replace(time=None)), grade(chopping, chopping._replace(negated=True))
        (4.0, 2.0)
    """
    one, other = first.event, second.event
    if one.topic != other.topic:
        return 0.0
    if (one.action, one.patient) != (other.action, other.patient):
        shared = (one.agent == other.agent) + (one.action == other.action) + (one.patient == other.patient)
        return (1.0, 1.5, 2.0)[shared]
    if first.negated != second.negated:
        return 2.0
    moved = first.place != second.place and None not in (first.place, second.place)
    important = (one.agent != other.agent) + moved
    if important:
        return (3.0, 2.5)[important - 1]
    details = sum(getattr(first, name) != getattr(second, name) for name in ("place", *DETAILS))
    return (5.0, 4.0, 3.5)[min(details, 2)]


def _choices(event: Event, detail: str) -> list[str]:
    """Return the possible values of a detail of an event."""
    weather, mishap = event.topic == "weather", event.action.split("/")[0] in MISHAPS
    return {
        "place": _PLACES[event.topic],
        "time": TIMES,
        "manner": WEATHER_MANNERS if weather else MISHAP_MANNERS if mishap else MANNERS,
        "trait": WEATHER_TRAITS if weather else TRAITS,
        "quality": _QUALITIES[event],
    }[detail]


def _frame(rng: random.Random, event: Event) -> Frame:
    """Return an event with a random selection of details."""
    odds = {"place": 0.6, "time": 0.35, "manner": 0.2, "trait": 0.1, "quality": 0.2}
    details: dict[str, Any] = {d: rng.choice(_choices(event, d)) for d, p in odds.items() if rng.random() < p}
    return Frame(event, **details)


# ---- sentences ------------------------------------------------------------------------------------------------------


def _inflect(verb: str) -> tuple[str, str, str]:
    """Return past, participle and -ing form of a verb: "cut up" -> "cut up", "cut up", "cutting up"."""
    base, *particle = verb.split()
    doubled = base + base[-1] if re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]", base) else base
    ing = (base[:-1] if re.search(r"[^e]e$", base) else doubled) + "ing"
    regular = base + "d" if base.endswith("e") else re.sub(r"(?<=[^aeiou])y$", "i", doubled) + "ed"
    _, past, participle = _FORMS.get(base, (base, regular, regular))
    past, participle, ing = (" ".join([form, *particle]) for form in (past, participle, ing))
    return past, participle, ing


def _be(noun: str) -> str:
    head = noun.split()[-1]
    plural = head in IRREGULAR_PLURALS or re.search(r"[^su]s$", head)
    return "were" if plural else "was"


def _article(phrase: str) -> str:
    return "an" if re.match(r"[aeio]|u(?!s|ni)", phrase) else "a"


def _say(rng: random.Random, frame: Frame) -> str:
    """Return a sentence for a frame, with random synonyms, word order, voice and lead-in."""

    def word(concept: str | None) -> str:
        return rng.choice(concept.split("/")) if concept else ""

    def phrase(*words: str) -> str:
        return " ".join(filter(None, words))

    event = frame.event
    people, mishap = event.topic != "weather", event.action.split("/")[0] in MISHAPS
    who, verb = phrase(word(frame.trait), word(event.agent)), word(event.action)
    past, participle, ing = _inflect(verb)
    indefinite = people and not frame.negated and rng.random() < 0.35
    agent = phrase(_article(who) if indefinite else "the", who)
    noun = word(event.patient)
    patient, be = phrase("the", word(frame.quality), noun), _be(noun)
    if frame.negated:
        forms = [f"{agent} did not {verb} {patient}", f"{agent} didn't {verb} {patient}"]
        forms += [f"{agent} never {past} {patient}", f"{patient} {be} not {participle} by {agent}"]
        forms += [f"it is not true that {agent} {past} {patient}"]
    else:
        forms = [f"{agent} {past} {patient}"] * 6 + [f"{patient} {be} {participle} by {agent}"] * 4
        forms += [f"it was {agent} {'who' if people else 'that'} {past} {patient}"]
        forms += [f"it was {patient} that {agent} {past}"]
        if not mishap:
            forms += [f"{agent} was {ing} {patient}", f"{patient} {be} being {participle} by {agent}"]
        if people and not mishap:
            forms += [f"{agent} was busy {ing} {patient}", f"{agent} was seen {ing} {patient}"]
    core = rng.choice(forms)
    place, time = word(frame.place), word(frame.time)
    front = rng.choice(["", "", place, time])
    tail = [part for part in rng.choice([(place, time), (time, place)]) if part != front]
    # "did not do it quietly" would deny the manner, not the event.
    manner = "" if frame.negated else word(frame.manner)
    sentence = phrase(front + "," if front else "", core, manner, *tail)
    if rng.random() < 0.1:
        sentence = f"{rng.choice(LEADS)} {sentence}"
    elif rng.random() < 0.03:
        sentence += ", " + rng.choice(ENDS)
    return sentence[0].upper() + sentence[1:] + "."


# ---- the world ------------------------------------------------------------------------------------------------------

# What the second sentence of a pair changes, and how often.
CHANGES = {"wording": 20, "detail": 18, "importance": 17, "event": 15, "everything": 12, "topic": 13, "negation": 5}


def _change(rng: random.Random, frame: Frame, change: str, events: list[Event]) -> Frame | None:
    """Return a frame that differs from `frame` by one kind of change, or `None` if `events` has none that fits."""
    event = frame.event
    if change == "wording":
        return frame
    if change == "negation":
        return frame._replace(negated=True)
    if change == "detail":
        names = rng.sample(DETAILS, rng.choice([1, 1, 2]))
        details: dict[str, Any] = {name: rng.choice([None, *_choices(event, name)]) for name in names}
        return frame._replace(**details)
    if change == "importance" and rng.random() < 0.4:
        return frame._replace(place=rng.choice(_choices(event, "place")))

    def fits(other: Event) -> bool:
        same = [ours == theirs for ours, theirs in zip(event, other, strict=True)]
        return {
            "importance": same == [True, False, True, True],
            "event": same[0] and any(same[1:]) and not (same[2] and same[3]),
            "everything": same[0] and not any(same[1:]),
            "topic": not same[0],
        }[change]

    candidates = list(filter(fits, events))
    if not candidates:
        return None
    other = rng.choice(candidates)
    if change == "importance":
        return frame._replace(event=other)
    if change == "event" and rng.random() < 0.5:  # another event at the same place and time
        return _frame(rng, other)._replace(place=frame.place, time=frame.time)
    return _frame(rng, other)


def _pairs(rng: random.Random, events: list[Event], count: int) -> list[tuple[str, str, float]]:
    pairs: dict[tuple[str, str], float] = {}
    while len(pairs) < count:
        change = rng.choices(list(CHANGES), list(CHANGES.values()))[0]
        first = _frame(rng, rng.choice(events))
        second = _change(rng, first, change, events)
        if second:
            texts = [_say(rng, first), _say(rng, second)]
            if texts[0] != texts[1]:
                rng.shuffle(texts)
                pairs[texts[0], texts[1]] = grade(first, second)
    return [(*texts, score) for texts, score in pairs.items()]


KEPT = 0.85  # the share of the premise's details that the entailed sentence repeats
NEGATED = 0.15  # the share of contradictions that negate the premise; the others change one fact of its event


def _triplet(rng: random.Random, alike: dict[Event, list[list[Event]]]) -> tuple[str, str, str]:
    """Return a premise, a sentence that follows from it (fewer details) and one that contradicts it.

    As in SNLI, the sentences tell of one scene: another agent, action or patient contradicts the premise.
    """
    premise = _frame(rng, rng.choice(list(alike)))
    dropped: dict[str, Any] = {name: None for name in ("place", *DETAILS) if rng.random() > KEPT}
    if rng.random() < NEGATED:
        contradiction = premise._replace(negated=True)
    else:
        contradiction = premise._replace(event=rng.choice(rng.choice(alike[premise.event])))
    return _say(rng, premise), _say(rng, premise._replace(**dropped)), _say(rng, contradiction)


def _alike(events: list[Event]) -> dict[Event, list[list[Event]]]:
    """Return for each event those that differ from it only in agent, only in action and only in patient.

    Empty lists are left out, and so is an event that has nothing but empty lists.
    """
    groups = defaultdict(list)
    for event in events:
        for fact in FACTS:
            groups[event._replace(**{fact: ""})].append(event)
    alike = {
        event: [[e for e in groups[event._replace(**{fact: ""})] if e != event] for fact in FACTS] for event in events
    }
    return {event: list(filter(None, lists)) for event, lists in alike.items() if any(lists)}


def _split(events: list[Event]) -> tuple[list[Event], list[Event], list[Event]]:
    """Split shuffled events into dev (15 %), test (15 %) and training.

    Every agent, action and patient occurs in training: an event with the last of one stays there.
    """
    left = Counter(fact for event in events for fact in event[1:])
    held_out: dict[Event, None] = {}  # a set that keeps its order
    for event in events:
        if len(held_out) < 2 * (len(events) * 15 // 100) and min(left[fact] for fact in event[1:]) > 1:
            left.subtract(event[1:])
            held_out[event] = None
    train = [event for event in events if event not in held_out]
    return list(held_out)[::2], list(held_out)[1::2], train


@dataclass(frozen=True)
class World:
    """Training sentences, graded dev and test pairs, and NLI triplets."""

    train: list[str]  # no duplicates
    dev: list[tuple[str, str, float]]  # sentence1, sentence2, score 0-5
    test: list[tuple[str, str, float]]
    triplets: list[tuple[str, str, str]]  # premise, entailment, contradiction


def make_world(seed: int = 42, sentences: int = 20000, pairs: int = 1000, triplets: int = 5000) -> World:
    """Make a world. The same seed always makes the same world.

    Events are split 70 / 15 / 15. Training sentences and triplets are about the first share, dev and test pairs
    (`pairs` each) about the second and the third. So no event of a test pair occurs in training, but each of its facts
    occurs in other events.

    Example:
        >>> world = make_world(sentences=100, pairs=10, triplets=5)
        >>> len(world.train), len(world.dev), len(world.test), len(world.triplets)
        (100, 10, 10, 5)
    """
    rng = random.Random(seed)
    events = rng.sample(list(_QUALITIES), len(_QUALITIES))
    dev, test, train = _split(events)
    alike = _alike(train)
    texts: dict[str, None] = {}  # a set that keeps its order
    while len(texts) < sentences:
        frame = _frame(rng, rng.choice(train))
        texts[_say(rng, frame._replace(negated=rng.random() < 0.06))] = None
    return World(
        train=list(texts),
        dev=_pairs(rng, dev, pairs),
        test=_pairs(rng, test, pairs),
        triplets=[_triplet(rng, alike) for _ in range(triplets)],
    )


def write_world(world: World, directory: Path) -> None:
    """Write `train.txt` (a sentence per line), `dev.csv`, `test.csv` and `nli_triplets.csv`; UTF-8, LF."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.txt").write_text("".join(f"{line}\n" for line in world.train), "utf-8", newline="\n")
    tables: dict[str, tuple[list[str], Iterable[tuple]]] = {
        "dev.csv": (["sentence1", "sentence2", "score"], world.dev),
        "test.csv": (["sentence1", "sentence2", "score"], world.test),
        "nli_triplets.csv": (["sent0", "sent1", "hard_neg"], world.triplets),
    }
    for name, (header, rows) in tables.items():
        with open(directory / name, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])
