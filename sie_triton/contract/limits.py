"""Limits of requests and of their results, the same for all models."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestLimits:
    max_findings: int = 100_000  # of an item; bounds the response, which repeats the label of each
    max_candidates: int = 20_000  # spans, runs or pairs of a text that are compared: those with the best scores
    max_json_characters: int = 1_000_000  # of a parameter
    max_instruction_tokens: int = 32_768
    max_lora_characters: int = 200  # of an adapter's name
    max_number_characters: int = 30  # of a word that becomes a number
    max_named: int = 20  # names in an error message


LIMITS = RequestLimits()
