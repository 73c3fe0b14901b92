"""From the words of a report to a stack at a version, in its circumstances.

A version is said in many ways: ``torch 2.6–2.14`` (the oldest of a range is taken: what holds there is what the
report is about), ``< 0.7.3`` (the newest below), ``≥ 2.6``, ``2025-04`` (what was out then), ``after 2026-08``,
``PR 115178`` or ``PR build`` with a link to the pull request (a build that the stack's file knows by that number),
``2023 draft``, ``any``, or nothing (the stack's default). A product other than the stack's own is its caller.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparsesim.errors import UserError
from sparsesim.replay.cases import Case
from sparsesim.stacks import FLAGS, Setting, Stack, StackFile, load_stack, stack_files
from sparsesim.stacks.conditions import WEIGHT_DTYPES
from sparsesim.stacks.versions import newest_before, parse_version

__all__ = ["Circumstances", "circumstances", "flags_of", "stack_file"]

_DATE = re.compile(r"\b(20\d\d)(?:-(\d\d))?\b")
_NUMBER = re.compile(r"(?<![\d.])v?(\d+(?:\.\d+)+|\d+(?=\s*$)|\d+(?=\.x))")
_PULL = re.compile(r"\b(?:PR\s*#?|pull/)(\d+)")
#: words of a model's description → flag
_WORDS = {
    "bert": r"\b(?:bert|roberta|distilbert|deberta|electra)",
    "cnn": r"\b(?:cnn|resnet|resnext|vgg|mobilenet|efficientnet|convnext|unet|yolo|densenet|network)",
    "compiled": r"\bcompiled?\b",
    "decoder": r"\b(?:gpt|llama|qwen|mistral|mixtral|opt|phi|gemma|falcon|bloom|decoder)",
    "eager": r"\beager\b",
    "moe": r"\b(?:moe|mixtral|experts?)\b",
    "qdq": r"\b(?:qat|q/?dq|explicit)\b",
    "vit": r"\b(?:vit|deit|swin|dino\w*|sam)\b",
}
#: raw libraries, called with the layout of their samples: row-major, neither operand transposed
_LIBRARIES = ("cusparselt", "hipsparselt")


@dataclass(frozen=True)
class Circumstances:
    """A stack in its circumstances, and how the version was understood."""

    stack: Stack
    note: str


def stack_file(name: str) -> StackFile | None:
    """The packaged rule file of stack `name`; None if there is none."""
    for path in stack_files():
        if path.stem == name:
            return load_stack(path)
    return None


def flags_of(case: Case) -> frozenset[str]:
    """The flags that a case's level and words stand for."""
    unknown = [flag for flag in case.flags if flag not in FLAGS]
    if unknown:
        raise UserError(f"flags: expected words out of {', '.join(FLAGS)}, found {', '.join(unknown)}")
    text = (case.model or "").lower()
    found = {flag for flag, words in _WORDS.items() if re.search(words, text)}
    if case.level == "training":
        found.add("training")
    if case.level in ("model", "training") or case.model:
        found.add("model")
    if case.level == "op" and "compiled" not in found:
        found.add("eager")
    if case.stack in _LIBRARIES:
        found.add("library")
    # int8 reaches a builder as Q/DQ nodes unless the report says that a calibrator made it
    if case.dtype == "i8" and not re.search(r"implicit|calibrat|ptq", text):
        found.add("qdq")
    return frozenset(found | set(case.flags))


def circumstances(case: Case, file: StackFile) -> Circumstances:
    """The stack of a case; raises UserError for a version that its file does not know."""
    version, more, caller, caller_version, note = _version(case, file)
    flags = flags_of(case) | frozenset(more)
    layout = case.layout or ("NN" if case.stack in _LIBRARIES and case.level == "op" else "")
    weight = case.dtype if case.dtype in WEIGHT_DTYPES else ""
    setting = Setting("", caller, caller_version, flags, layout, weight)
    return Circumstances(file.stack(version, case.treatment or "", setting), note)


def _version(case: Case, file: StackFile) -> tuple[str, tuple[str, ...], str, str, str]:
    """(version, flags, caller, its version, note) out of the words of a case."""
    text = (case.stack_version or "").strip()
    build = _build(text, case.link, file)
    if build is not None:
        name, (version, *flags) = build
        return (
            version,
            tuple(flags),
            "",
            "",
            f"{name}: taken as {version}" + (f" ({', '.join(flags)})" if flags else ""),
        )
    if not text or text.lower() == "any" or not file.versions:
        return "", (), "", "", f"version {file.default}, {file.default_text}" if file.default else ""
    product = re.match(r"[A-Za-z][A-Za-z-]*", text)
    word = product[0].lower() if product else ""
    if word and word not in ("after", "before", "since", "from", *file.products) and _NUMBER.search(text):
        number = _NUMBER.search(text)
        assert number is not None
        # "0.2, CUDA 11.5" begins with the number; "torchao 0.8" names another product
        return "", (), word, number[1], f"{word} {number[1]} on version {file.default}"
    numbers = [found[1] for found in _NUMBER.finditer(_DATE.sub(" ", text).split(",")[0])]
    if not numbers:
        date = _DATE.search(text)
        if date is not None:
            return _dated(text, date, file)
        return "", (), "", "", f"{text!r} names no version: {file.default}, {file.default_text}"
    first = numbers[0]
    if re.search(r"<(?!=)|\bbefore\b", text):
        below = [version for version in file.versions if (parse_version(version) or ()) < (parse_version(first) or ())]
        if not below:
            raise UserError(f"stack {file.name}: version: expected one of {', '.join(file.versions)}, found {text!r}")
        return below[-1], (), "", "", f"{text}: the newest below, {below[-1]}"
    if re.search(r"\d\.x", text):
        return "", (), "", "", f"{text}: {file.default}, {file.default_text}"
    known = _near(first, file)
    return known, (), "", "", f"{text}: version {known}"


def _near(number: str, file: StackFile) -> str:
    """`number`, or the known version that is newest up to it where the file begins or ends elsewhere."""
    wanted = parse_version(number) or ()
    known = [parse_version(version) or () for version in file.versions]
    if known[0] <= wanted or wanted in [item[: len(wanted)] for item in known]:
        return number if wanted[: len(known[-1])] <= known[-1] else file.versions[-1]
    raise UserError(f"stack {file.name}: version: expected {file.versions[0]} or later, found {number}")


def _dated(text: str, date: re.Match[str], file: StackFile) -> tuple[str, tuple[str, ...], str, str, str]:
    """The version that was out at a date; behind ``after``, a month later."""
    year, month = int(date[1]), int(date[2] or 12)
    if re.search(r"\bafter\b", text) and month < 12:
        month += 1
    found = newest_before(f"{year}-{month:02d}", file.dates)
    if found is None:
        return "", (), "", "", f"{text}: no release date is known; {file.default}, {file.default_text}"
    # the newest with a date may be older than what is known: then the default was out as well
    if found == max(file.dates, key=lambda item: parse_version(item) or ()) and found != file.versions[-1]:
        found = file.default
    return found, (), "", "", f"{text}: version {found} was out"


def _build(text: str, link: str, file: StackFile) -> tuple[str, tuple[str, ...]] | None:
    """The build that the words, or the pull request they point to, stand for."""
    for name, means in file.builds.items():
        if name.lower() in text.lower():
            return name, means
    if "PR" in text:
        for pull in (_PULL.search(text), _PULL.search(link)):
            name = f"PR {pull[1]}" if pull else ""
            if name in file.builds:
                return name, file.builds[name]
    return None
