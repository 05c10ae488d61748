"""What messages of Feishu say, and what is sent there: plain decisions, without a server."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.channels.feishu.posts import MAX_BYTES, Question, answered, asking, post, pressed, size
from miniclaw_sessions.channels.feishu.reading import Ids, Mention, Place, Said, Sent, said_in
from miniclaw_sessions.channels.splitting import split

BOT = Mention("@_user_1", Ids("ou_bot"), "Claw")
ANN = Mention("@_user_10", Ids("ou_ann"), "Ann")


def said(kind: str, content: Any, *mentions: Mention) -> Said | None:
    return said_in(Sent("om_1", "oc_1", "group", kind, json.dumps(content), mentions=mentions), "ou_bot")


def text_of(kind: str, content: Any, *mentions: Mention) -> str:
    found = said(kind, content, *mentions)
    assert found is not None
    return found.text


@pytest.mark.parametrize(
    ("text", "understood"),
    [
        ("@_user_1 hello", "hello"),
        ("@_user_1, hello", "hello"),
        ("hello @_user_1", "hello"),
        ("/stop @_user_1 ", "/stop"),
        ("hello  @_user_1 \n @_user_1", "hello"),
        (" hello @_user_10 @_user_1", " hello @Ann"),
        ("@_user_1 /new what is 1 < 2?", "/new what is 1 < 2?"),
        ("@_user_1 ask @_user_10, and @_user_1 too, now", "ask @Ann, and @Claw too, now"),
        ("@_all and @_user_10: hello", "@all and @Ann: hello"),
        ("@_user_1", ""),
        ("me@_user_100 is no mention", "me@_user_100 is no mention"),
    ],
)
def test_a_text_has_the_names_of_people_and_not_the_bots_own_at_its_ends(text: str, understood: str) -> None:
    assert text_of("text", {"text": text}, BOT, ANN) == understood


@pytest.mark.parametrize("hostile", [" " * 1_000_000, " @_user_1" * 100_000])
def test_a_hostile_text_takes_no_longer_than_it_is_long(hostile: str) -> None:
    text = f"@_user_1 a{hostile}b"  # a quadratic reading takes hours
    assert text_of("text", {"text": text}, BOT).startswith("a")


POST = {
    "title": "Plan",
    "content": [
        [
            {"tag": "at", "user_id": "@_user_1", "user_name": "Claw"},
            {"tag": "text", "text": " see ", "style": ["bold"]},
        ],
        [{"tag": "a", "href": "https://a.example", "text": "this"}, {"tag": "emotion", "emoji_type": "SMILE"}],
        [{"tag": "img", "image_key": "img_1"}],
        [{"tag": "code_block", "language": "PYTHON", "text": "x = 1\n"}, {"tag": "new", "what": 1}],
        [{"tag": "hr"}],
        [{"tag": "at", "user_id": "all", "user_name": "everyone"}, {"tag": "md", "text": "**so**"}],
    ],
}


@pytest.mark.parametrize("content", [POST, {"zh_cn": POST}], ids=["as an event has it", "below a language"])
def test_a_rich_text_becomes_markdown_and_its_pictures_are_found(content: Any) -> None:
    found = said("post", content, BOT)
    assert found is not None
    words = "Plan\n\n@Claw see \n[this](https://a.example):SMILE:\n\n```python\nx = 1\n```\n---\n@everyone**so**"
    assert found == Said(words, ["img_1"], unseen=[])


@pytest.mark.parametrize(
    ("kind", "content", "to_model", "is_answered"),
    [
        ("audio", {"file_key": "f", "duration": 1400}, "a voice message of 1 second, which you cannot listen to", True),
        ("media", {"file_key": "f", "duration": 61000}, "a video of 61 seconds, which you cannot watch", True),
        ("file", {"file_key": "f", "file_name": " a\nb.zip"}, "a file (a b.zip), which you cannot open", True),
        ("sticker", {"file_key": "f"}, "a sticker, which you cannot see", False),
        ("location", {"name": "x"}, "a place on a map, which you cannot see", True),
        ("hologram", {}, "something, which you cannot read", True),
    ],
)
def test_what_no_model_sees_is_said_in_its_place(kind: str, content: Any, to_model: str, *, is_answered: bool) -> None:
    found = said(kind, content)
    assert found is not None
    (unseen,) = found.unseen
    assert unseen.to_model == f"(The person sent {to_model}.)"
    assert bool(unseen.to_person) is is_answered
    assert (found.file is not None) is (kind in {"audio", "file"})


def test_what_feishu_says_itself_is_no_message() -> None:
    assert said("system", {"template": "{from_user} joined"}) is None


@pytest.mark.parametrize("content", ['"text"', "[]", "no JSON"])
def test_content_that_is_none_is_an_error(content: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        said_in(Sent("om_1", "oc_1", "p2p", "text", content), "ou_bot")


@pytest.mark.parametrize("chat_id", ["oc_1", "oc_1,omt_2"])
def test_a_place_is_found_again_by_its_text(chat_id: str) -> None:
    assert str(Place.of(chat_id)) == chat_id


# --- what is sent ----------------------------------------------------------------------------------------------------


def shown_in(content: dict[str, Any]) -> str:
    ((element,),) = content["zh_cn"]["content"]
    return str(element["text"])


@given(st.text(st.characters(codec="utf-8")))
def test_what_is_not_the_models_is_shown_to_the_letter(text: str) -> None:
    assert shown_in(post(text, is_markdown=False)) == text


@pytest.mark.parametrize("text", ['<at user_id="all"></at>', "<AT id=all></AT>", "</at>"])
def test_no_answer_mentions_people(text: str) -> None:
    assert "<at" not in shown_in(post(text, is_markdown=True)).lower()
    assert "<\u200b" in shown_in(post(text, is_markdown=True))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see ![a cat](https://a.example/cat.png)!", "see [a cat](https://a.example/cat.png)!"),
        ("![Wow! [1](https://a.example/?a!b)", "[Wow! [1](https://a.example/?a!b)"),
        ("![a ![b](c)", "![a [b](c)"),
        ("`vec![1, 2]` and <b>", "`vec![1, 2]` and <b>"),
    ],
)
def test_a_picture_that_feishu_does_not_have_is_a_link(text: str, shown: str) -> None:
    assert shown_in(post(text, is_markdown=True)) == shown


@pytest.mark.parametrize("hostile", ["![", "![](", "![a](b"])
def test_hostile_markdown_takes_no_longer_than_it_is_long(hostile: str) -> None:
    text = hostile * 300_000  # a quadratic reading takes half an hour
    assert shown_in(post(text, is_markdown=True)) == text


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_the_size_of_a_text_is_what_it_adds_to_a_request(text: str) -> None:
    empty, full = (orjson.dumps({"content": orjson.dumps(post(one, is_markdown=False)).decode()}) for one in ("", text))
    assert size(text) == len(full) - len(empty)
    assert size(text) >= len(text)


@pytest.mark.parametrize("letter", ["a", "字", '"', "\\", "\n", "\x00"])
def test_the_worst_text_fits_into_requests(letter: str) -> None:
    pieces = split(f"{letter * 9}b" * 5_000, MAX_BYTES, size)
    assert len(pieces) > 1
    for piece in pieces:
        request = orjson.dumps({"content": orjson.dumps(post(piece, is_markdown=True)).decode()})
        assert len(request) < 30_000


@pytest.mark.parametrize(("text", "is_carried"), [("delete x?", True), ('"\\' * 1_400, False)])
def test_a_button_carries_its_question_if_that_is_short(text: str, *, is_carried: bool) -> None:
    question = Question("oc_1,omt_2", is_reply=True, calls=("entry.call_0", "entry.call 1"), text=text)
    card = asking(question)
    assert card["elements"][0]["text"] == {"tag": "plain_text", "content": text}
    values = [button["value"] for button in card["elements"][1]["actions"]]
    carried = Question("oc_1,omt_2", is_reply=True, calls=("entry.call_0", "entry.call 1"), text=text * is_carried)
    assert [pressed(value) for value in values] == [(carried, "yes"), (carried, "no")]
    assert len(orjson.dumps({"content": orjson.dumps(card).decode()})) < 30_000


def test_a_card_keeps_the_button_that_was_pressed_until_all_is_over() -> None:
    question = Question("oc_1", is_reply=False, calls=("1.2",), text="delete x?")
    assert "Yes" in str(answered(question, "yes", is_over=False))
    assert "action" not in str(answered(question, "yes", is_over=True))
    assert "Answered: yes." in str(answered(question, "yes", is_over=True))
    assert "Answered." in str(answered(question, "", is_over=True))


@pytest.mark.parametrize("value", [{}, {"question": "{}", "answer": "yes"}, {"question": "[", "answer": "no"}])
def test_a_button_of_another_card_is_none_of_ours(value: dict[str, Any]) -> None:
    assert pressed(value) is None
