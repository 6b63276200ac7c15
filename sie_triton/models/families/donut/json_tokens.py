"""Donut's output → JSON: `<s_key>` and `</s_key>` enclose a value, `<sep/>` separates values and records.

Reads like DonutProcessor.token2json of transformers, including letter case and fields that are not closed.
"""

import re
from collections.abc import Collection
from typing import Any

OPENING = re.compile("<s_", re.IGNORECASE)
SEPARATOR = "<sep/>"

Record = dict[str, Any]


def parsed(text: str, added: Collection[str]) -> Any:
    """Return a record or a list of records.

    `added` are the tokenizer's added tokens; one of them such as `<yes/>` is the value yes.

    >>> parsed("<s_menu><s_nm>Tea</s_nm><sep/><s_nm>Pie</s_nm></s_menu><s_paid><yes/></s_paid>", {"<yes/>"})
    {'menu': [{'nm': 'Tea'}, {'nm': 'Pie'}], 'paid': 'yes'}
    >>> parsed("nothing in fields", ())
    {'text_sequence': 'nothing in fields'}
    """
    try:
        records, last, left = _records(text, added)
    except RecursionError:
        return {"text_sequence": text}
    if records:
        return [*records, last] if last else records
    return last or {"text_sequence": left}


def _records(text: str, added: Collection[str]) -> tuple[list[Record], Record, str]:
    """Return the records before a separator, the record after the last one, and the remaining text."""
    records: list[Record] = []
    record: Record = {}
    while text and (opening := OPENING.search(text)):
        end = text.find(">", opening.start())
        if end < 0:
            break
        start = text[opening.start() : end + 1]
        closing = re.search(f"</s_{re.escape(start[3:-1])}>", text, re.IGNORECASE)
        if closing is None:
            text = text.replace(start, "")
            continue
        stop = closing.group()
        content = re.search(f"{re.escape(start)}(.*?){re.escape(stop)}", text, re.IGNORECASE | re.DOTALL)
        if content is not None:
            _put(record, start[3:-1], content.group(1).strip(), added)
        text = text[text.find(stop) + len(stop) :].strip()
        if text.startswith(SEPARATOR):
            records.append(record)
            record, text = {}, text[len(SEPARATOR) :]
    return records, record, text


def _put(record: Record, key: str, content: str, added: Collection[str]) -> None:
    if "<s_" in content and "</s_" in content:
        records, last, _ = _records(content, added)
        found: list[Any] = [*records, last] if last else records
        if found:
            record[key] = found[0] if len(found) == 1 else found
        return
    values = [_value(each.strip(), added) for each in content.split(SEPARATOR)]
    record[key] = values[0] if len(values) == 1 else values


def _value(leaf: str, added: Collection[str]) -> str:
    return leaf[1:-2] if leaf in added and leaf[0] == "<" and leaf[-2:] == "/>" else leaf
