"""Synthetic chat tasks whose answers can be checked, and the stable split into training and held-out ones."""

import hashlib
import json
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

HELD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class Task:
    """A user message and the one right answer; ``spelled`` answers are written a character at a time."""

    kind: str
    prompt: str
    answer: str
    spelled: bool = True


@dataclass(frozen=True)
class Source:
    """Where tasks are drawn from: words, the split, and the share of pairs that have a number of one digit."""

    words: Sequence[str]
    pieces: Sequence[str]
    held_out: bool = False
    one_digit: float = 0.2


def is_held_out(key: str) -> bool:
    """Whether a pair or word is never trained on; depends on nothing but ``key``."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") < HELD_OUT_SHARE * 2**32


def draw_pair(rng: Random, source: Source) -> tuple[int, int]:
    """Two numbers below 100, mostly of two digits. Both orders of a pair are in the same split."""
    while True:
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        if rng.random() < source.one_digit:
            a, b = (rng.randint(0, 9), b) if rng.random() < 0.5 else (a, rng.randint(0, 9))
            b = rng.randint(0, 9) if rng.random() < 0.2 else b
        if is_held_out(f"{min(a, b)},{max(a, b)}") == source.held_out:
            return a, b


def draw_word(rng: Random, source: Source, longest: int = 9) -> str:
    """A word of the library, random letters, or random pieces of the vocabulary put together."""
    while True:
        choice = rng.random()
        if choice < 0.5:
            word = rng.choice(source.words)
        elif choice < 0.7:
            word = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 8)))
        else:
            word = "".join(rng.choices(source.pieces, k=rng.randint(1, 4)))
        if 2 <= len(word) <= longest and is_held_out(word.lower()) == source.held_out:
            return word


def _case(rng: Random, text: str) -> str:
    return text[0].lower() + text[1:] if rng.random() < 0.15 else text


def addition(rng: Random, source: Source) -> Task:
    """Sum of two numbers."""
    a, b = draw_pair(rng, source)
    form = rng.choice(
        [
            f"{a}+{b}", f"{a}+{b}", f"{a} + {b}", f"{a} + {b}", f"{a}+{b}=", f"{a} + {b} =", f"{a} + {b} = ?",
            f"What is {a} + {b}?", f"What is {a} + {b}?", f"What is {a}+{b}?", f"What's {a} + {b}?",
            f"What's {a} + {b}", f"What is {a} plus {b}?", f"{a} plus {b}", f"Add {a} and {b}.",
            f"Please add {a} and {b}.", f"Compute {a} + {b}.", f"Calculate {a} + {b}", f"How much is {a} + {b}?",
            f"What is the sum of {a} and {b}?",
        ]
    )  # fmt: skip
    return Task("addition", _case(rng, form), str(a + b))


def subtraction(rng: Random, source: Source) -> Task:
    """Difference of two numbers, mostly not negative."""
    a, b = draw_pair(rng, source)
    if a < b and rng.random() < 0.8:
        a, b = b, a
    form = rng.choice(
        [
            f"{a}-{b}", f"{a} - {b}", f"{a}-{b}=", f"{a} - {b} =", f"What is {a} - {b}?", f"What is {a}-{b}?",
            f"What's {a} - {b}?", f"What is {a} minus {b}?", f"{a} minus {b}", f"Subtract {b} from {a}.",
            f"Please subtract {b} from {a}.", f"Compute {a} - {b}.", f"How much is {a} - {b}?",
        ]
    )  # fmt: skip
    return Task("subtraction", _case(rng, form), str(a - b))


def reversal(rng: Random, source: Source) -> Task:
    """A word backwards."""
    w = draw_word(rng, source)
    form = rng.choice(
        [
            f'Reverse "{w}"', f'Reverse "{w}".', f'Reverse the word "{w}".', f'Reverse the word "{w}"',
            f'Reverse: "{w}"',
            f'Please reverse "{w}".', f'Please reverse the word "{w}".', f'Spell "{w}" backwards.',
            f'What is "{w}" reversed?', f'What is "{w}" backwards?', f'Reverse "{w}"', f'Reverse the word "{w}".',
        ]
    )  # fmt: skip
    return Task("reversal", _case(rng, form), w[::-1])


def uppercase(rng: Random, source: Source) -> Task:
    """A word in capital letters."""
    w = draw_word(rng, source)
    form = rng.choice(
        [
            f'Uppercase "{w}"', f'Uppercase "{w}".', f'Uppercase the word "{w}".', f'Convert "{w}" to uppercase.',
            f'Write "{w}" in capital letters.', f'Write "{w}" in upper case.', f'What is "{w}" in uppercase?',
            f'Uppercase: "{w}"',
        ]
    )  # fmt: skip
    return Task("uppercase", _case(rng, form), w.upper())


def digit_sort(rng: Random, source: Source) -> Task:
    """The digits of a number in ascending order."""
    while True:
        digits = "".join(rng.choices(string.digits, k=rng.randint(3, 6)))
        if is_held_out(digits) == source.held_out:
            break
    form = rng.choice(
        [
            f"Sort the digits {digits}", f"Sort the digits {digits}.", f"Sort the digits of {digits}.",
            f"Sort {digits}", f'Sort the digits "{digits}".', f"Put the digits of {digits} in order.",
        ]
    )  # fmt: skip
    return Task("digit_sort", _case(rng, form), "".join(sorted(digits)))


def letter_count(rng: Random, source: Source) -> Task:
    """How often a letter is in a word."""
    w = draw_word(rng, source)
    c = rng.choice(w) if rng.random() < 0.8 else rng.choice(string.ascii_lowercase)
    form = rng.choice(
        [
            f'How many times does "{c}" occur in "{w}"?', f'Count the letter "{c}" in "{w}".', f'Count "{c}" in "{w}"',
            f'How many "{c}" are in "{w}"?', f'How often is "{c}" in "{w}"?',
        ]
    )  # fmt: skip
    return Task("letter_count", _case(rng, form), str(w.count(c)))


NAMES = """
    Ada Alan Alice Amir Anna Ben Bob Carla Chen Clara David Dora Elena Emil Eva Felix Frank Grace Hana Henry Ida Ines
    Ivan Jack James Jane John Julia Karl Kate Kim Lara Leo Lena Linus Lucy Maria Mark Max Mia Mila Nina Noah Olga Omar
    Oscar Paul Peter Rosa Ruth Sam Sara Sofia Tara Tim Tom Uma Vera Victor Wei Yuki Zoe
"""
CITIES = """
    Accra Athens Berlin Bern Bogota Boston Cairo Dakar Delhi Dublin Geneva Hanoi Helsinki Kyoto Lagos Lima Lisbon
    London Madrid Milan Nairobi Oslo Paris Prague Quito Rome Seoul Sydney Tokyo Turin Vienna Warsaw Zurich
"""
COLORS = "red green blue black white yellow orange purple brown gray pink"


@dataclass(frozen=True)
class Person:
    """Some facts about somebody under keys of one's own, and the sentence that tells them."""

    values: dict[str, str | int]
    sentence: str


KEYS = {
    "name": ("name", "name", "name", "first_name", "person", "who"),
    "age": ("age", "age", "age", "years", "years_old"),
    "city": ("city", "city", "city", "town", "location", "home"),
    "color": ("color", "color", "favorite_color", "likes", "colour"),
}


def draw_person(rng: Random, source: Source) -> Person:
    """Somebody of whom one to three facts beside the name are told, and all of them or only some are asked for."""
    while True:
        name, city, color = (rng.choice(names.split()) for names in (NAMES, CITIES, COLORS))
        age = rng.randint(10, 99)
        if is_held_out(f"{name},{age}") == source.held_out:
            break
    facts: dict[str, str | int] = {"age": age, "city": city, "color": color}
    told = {
        "age": (f"is {age} years old", f"is {age}"),
        "city": (f"lives in {city}", f"is from {city}"),
        "color": (f"likes {color}",),
    }
    kinds = rng.sample(sorted(facts), k=rng.randint(1, 3))
    sentence = f"{name} " + " and ".join(rng.choice(told[kind]) for kind in kinds) + "."
    asked = ["name", *kinds] if rng.random() < 0.8 else rng.sample(["name", *kinds], k=rng.randint(1, len(kinds)))
    if rng.random() < 0.3:
        rng.shuffle(asked)
    values = {rng.choice(KEYS[kind]): name if kind == "name" else facts[kind] for kind in asked}
    return Person(values, sentence)


def json_fill(rng: Random, source: Source) -> Task:
    """A given JSON object with its empty values filled in from a sentence."""
    while True:
        name, city, color = (rng.choice(names.split()) for names in (NAMES, CITIES, COLORS))
        age = rng.randint(10, 99)
        if is_held_out(f"{name},{age}") == source.held_out:
            break
    facts: dict[str, tuple[str | int, str]] = {
        "age": (age, f"is {age} years old"),
        "city": (city, f"lives in {city}"),
        "color": (color, f"likes {color}"),
    }
    keys = rng.sample(sorted(facts), k=rng.randint(1, 3))
    sentence = f"{name} " + " and ".join(facts[k][1] for k in keys) + "."
    order = ["name", *keys]
    if rng.random() < 0.3:
        rng.shuffle(order)
    values: dict[str, str | int] = {"name": name}
    values |= {k: facts[k][0] for k in keys}
    blanks: dict[str, str | int] = {"name": "", "age": 0, "city": "", "color": ""}
    empty = json.dumps({k: blanks[k] for k in order})
    form = rng.choice([f"Fill in: {empty} {sentence}", f"{sentence} Fill in the JSON: {empty}", f"{sentence} {empty}"])
    return Task("json_fill", form, json.dumps({k: values[k] for k in order}), spelled=False)


ME = "I am pico, a tiny language model."
SKILLS = (
    "I can add and subtract small numbers, reverse and uppercase words, sort digits, count letters, fill in JSON "
    "and continue Python code."
)
SMALL_TALK: dict[str, tuple[str, ...]] = {
    "Hello! How can I help you?": (
        "Hello", "Hello!", "Hi", "Hi!", "hello", "hi", "Hey", "Hello there", "Good morning", "Hi there!",
    ),
    ME: ("Who are you?", "What are you?", "What is your name?", "Who are you", "what's your name?",
         "Tell me who you are."),
    "I am fine, thank you. How can I help you?": ("How are you?", "How are you doing?", "How do you do?"),
    "You are welcome!": ("Thanks", "Thanks!", "Thank you", "Thank you!", "thanks"),
    "Goodbye!": ("Bye", "Bye!", "Goodbye", "Goodbye!", "See you"),
    SKILLS: ("What can you do?", "Help", "help", "What do you know?", "How can you help me?"),
}  # fmt: skip


def small_talk(rng: Random, source: Source) -> Task:
    """A greeting or a question about the model."""
    answer, questions = rng.choice(list(SMALL_TALK.items()))
    return Task("small_talk", rng.choice(questions), answer, spelled=False)


MAKERS: dict[str, Callable[[Random, Source], Task]] = {
    "addition": addition,
    "subtraction": subtraction,
    "reversal": reversal,
    "uppercase": uppercase,
    "digit_sort": digit_sort,
    "letter_count": letter_count,
    "json_fill": json_fill,
    "small_talk": small_talk,
}
SHARES = {
    "addition": 30, "reversal": 20, "subtraction": 16, "uppercase": 8, "digit_sort": 8, "letter_count": 5,
    "json_fill": 10, "small_talk": 3,
}  # fmt: skip
SYSTEM_MESSAGES = (
    "You are a helpful assistant.", "You are pico.", "Be brief.", "Answer briefly.", "Answer with the result only.",
    "You are a helpful assistant. Answer briefly.", "You are pico, a tiny language model.",
)  # fmt: skip


def draw_task(rng: Random, source: Source) -> Task:
    """A task of a kind drawn by its share."""
    kind = rng.choices(list(SHARES), weights=list(SHARES.values()))[0]
    return MAKERS[kind](rng, source)
