"""The list of bad inputs, whole: each item with the test that feeds it and the name it has there.

Ids and content are fed by `test_texts` to the library and by the gateway's tests over HTTP, from one table.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TEXTS, FILES, HTTP, SECURITY = (
    "bad_input/texts.py",
    "bad_input/file_damage.py",
    "service/gateway/test_bad_input.py",
    "service/gateway/test_security.py",
)
ON_DISK = "bad_input/test_files.py"

LIST: dict[str, tuple[str, str]] = {
    # ids and contents
    "empty": (TEXTS, "empty"),
    "1 byte": (TEXTS, "one byte"),
    "255 characters": (TEXTS, "255 characters"),
    "256 characters": (TEXTS, "256 characters"),
    "10^6 characters": ("bad_input/test_texts.py", "10^6 characters"),
    "128 x e acute": (TEXTS, "128 e acute"),
    "..": (TEXTS, "dot dot"),
    ".": (TEXTS, "dot"),
    "../x": (TEXTS, "parent"),
    "/etc/passwd": (TEXTS, "absolute path"),
    "a/b": (TEXTS, "slash"),
    "a\\b": (TEXTS, "backslash"),
    "~": (TEXTS, "home"),
    "-rf": (TEXTS, "option"),
    "leading space": (TEXTS, "leading space"),
    "trailing space": (TEXTS, "trailing space"),
    "leading dot": (TEXTS, "leading dot"),
    "trailing dot": (TEXTS, "trailing dot"),
    "CON": (TEXTS, "device"),
    "nul.json": (TEXTS, "device file"),
    "x.tmp": (TEXTS, "temporary"),
    ".lock": (TEXTS, "lock"),
    "a quarantine-like name": (TEXTS, "quarantined"),
    "a:b | c with a | b:c": ("bad_input/test_texts.py", "test_all_of_them_side_by_side_in_a_database"),
    "A / a": (TEXTS, "capital"),
    "e acute as NFC": (TEXTS, "NFC"),
    "e acute as NFD": (TEXTS, "NFD"),
    "sharp s / SS": (TEXTS, "sharp s"),
    "fullwidth digits": (TEXTS, "fullwidth digits"),
    "superscript two": (TEXTS, "superscript"),
    "right-to-left override": (TEXTS, "right to left override"),
    "zero-width joiner": (TEXTS, "zero width joiner"),
    "U+2028": (TEXTS, "line separator"),
    "U+0085": (TEXTS, "next line"),
    "0x1C": (TEXTS, "file separator"),
    "CR": (TEXTS, "CR"),
    "LF": (TEXTS, "LF"),
    "CRLF": (TEXTS, "CRLF"),
    "NUL": (TEXTS, "NUL"),
    "ESC sequences": (TEXTS, "escape sequence"),
    "lone surrogate": (TEXTS, "lone surrogate"),
    "reversed pair": (TEXTS, "reversed pair"),
    "U+FEFF first": (TEXTS, "byte order mark"),
    "<0>x": (TEXTS, "journal priority"),
    "{}%s{0}": (TEXTS, "formats"),
    "19 digits": (TEXTS, "19 digits"),
    "20 digits": (TEXTS, "20 digits"),
    "4300 digits": (TEXTS, "4300 digits"),
    "4301 digits": (TEXTS, "4301 digits"),
    "1e400": (TEXTS, "float"),
    "-0": (TEXTS, "minus zero"),
    "NaN": (TEXTS, "NaN"),
    "__proto__": (TEXTS, "proto"),
    "10^5 distinct ids at once": (
        "bad_input/test_texts.py",
        "test_a_hundred_thousand_ids_at_once_meet_the_cap_and_cost_nobody_his_session",
    ),
    # bodies
    "overlong UTF-8": (HTTP, "overlong UTF-8"),
    "truncated UTF-8": (HTTP, "cut off UTF-8"),
    "UTF-16 body": (HTTP, "UTF-16"),
    "byte order mark in a body": (HTTP, "byte order mark"),
    "numbers": (HTTP, "test_numbers_are_kept_or_refused_but_never_altered"),
    "duplicate keys": (HTTP, "duplicate keys"),
    "depth 31, 32, 33, 1000, 10^6": (HTTP, "test_nesting_is_kept_or_refused_but_never_crashes"),
    "10^6 empty objects": (HTTP, "test_a_million_empty_objects_are_refused_before_they_are_made"),
    "a body of exactly the limit, and limit + 1": (
        HTTP,
        "test_exactly_the_limit_is_accepted_and_one_byte_more_is_not",
    ),
    # HTTP
    "chunked without end": (HTTP, "test_chunks_without_end_are_cut_off"),
    "two Content-Length": (HTTP, "two lengths"),
    "Host evil": (SECURITY, "host evil"),
    "Host missing": (SECURITY, "no host"),
    "Host with wrong port": (SECURITY, "host with wrong port"),
    "Origin null": (SECURITY, "origin null"),
    "token with e acute": (SECURITY, "token e acute"),
    "token empty": (SECURITY, "token empty"),
    "token of 1 MB": (SECURITY, "1 MB token"),
    # files on disk
    "file of 0 bytes": (FILES, "0 bytes"),
    "file of NULs": (FILES, "all NULs"),
    "file truncated at each byte": (ON_DISK, "test_files_that_are_truncated_at_each_byte_cost_nobody_a_message"),
    "valid JSON of the wrong shape": (FILES, "valid JSON of the wrong shape"),
    "id mismatch": (ON_DISK, "test_a_snapshot_of_another_session_is_set_aside"),
    "future version": (ON_DISK, "test_a_file_of_a_future_version_stops_the_start_and_is_not_touched"),
    "FIFO": (FILES, "FIFO"),
    "directory": (FILES, "directory"),
    "symlink to itself": (FILES, "symlink to itself"),
    "no read permission": (FILES, "no read permission"),
    "sparse 10 GB": (FILES, "sparse 10 GB"),
}


@cache
def names_in(file: str) -> frozenset[str]:
    """Every test of a file, and every text in it that may be the name of a case."""
    nodes = list(ast.walk(ast.parse((TESTS / file).read_text(encoding="utf-8"))))
    tests = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return frozenset(
        tests | {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    )


@pytest.mark.parametrize("item", LIST)
def test_every_item_of_the_list_is_fed(item: str) -> None:
    file, name = LIST[item]
    assert name in names_in(file)


def test_the_texts_are_fed_to_the_library_and_over_http() -> None:
    """From the one table, so that a text that is added there is fed everywhere."""
    for file in ("bad_input/test_texts.py", "service/gateway/test_bad_input.py"):
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        assert any(
            node.module == "tests.bad_input.texts" and "TEXTS" in {a.name for a in node.names} for node in imports
        )
