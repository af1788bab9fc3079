"""What a request may take its time for, and what not."""

import pytest

from agentcoordd.server.answers import Message, Refusal
from agentcoordd.server.requests import data_of

PATH = "claims/o/r/7.json"


async def test_a_body_may_come_in_pieces() -> None:
    pieces = [b'{"data": ', b'{"a":', b" [1, 2]", b"}}"]

    async def receive() -> Message:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    assert await data_of(PATH, {}, receive) == '{"a":[1,2]}'


async def test_a_caller_that_leaves_is_not_waited_for() -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(Refusal) as caught:
        await data_of(PATH, {}, receive)
    assert (caught.value.answer.status, caught.value.answer.close) == (408, True)
