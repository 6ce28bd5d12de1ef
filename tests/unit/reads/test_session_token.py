"""A session's token: a text that another process goes on with. Promise 5, beyond one process; issue 5."""

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken
from tidegate.reads.consistency import Seen, asked, guarantee
from tidegate.reads.token import decode, encode

HERE = b"\xfb\xff\xfe" + bytes(range(13))
THERE = bytes(range(1, 17))
SEEN = Seen(Timestamp.compose(1_750_000_000_000, 7), Timestamp.compose(1_750_000_000_500, 1))
TOKEN = encode(HERE, SEEN)


def test_the_text_of_a_token_is_fixed():
    """Tokens are kept outside, so a new version must still read this one."""
    assert TOKEN == "tg1--__-AAECAwQFBgcICQoLDAcAAHCD0F0GAQDQd4PQXQZtCDk5"
    assert decode(TOKEN, HERE) == SEEN


def test_the_other_process_waits_for_what_this_one_wrote_and_saw():
    for level, needed in (("session", SEEN.written), ("eventual", SEEN.read)):
        seen = decode(TOKEN, HERE)
        assert guarantee(asked(level), now=SEEN.written, seen=seen, changed=Timestamp.ZERO) == needed


def test_the_token_of_a_new_session_is_one_too():
    assert decode(encode(HERE, Seen()), HERE) == Seen()


def test_a_token_of_another_database_is_refused():
    """Its Timestamps mean nothing here, and might be waited for for ever."""
    with pytest.raises(InvalidArgument, match="is of another database; begin a new session here"):
        decode(encode(THERE, SEEN), HERE)


@pytest.mark.parametrize(
    "wrong", ["", "tg1", "tg2" + TOKEN[3:], TOKEN[4:], "TG1" + TOKEN[3:], 17, None, TOKEN.encode()]
)
def test_what_is_no_token_is_refused_and_says_what_one_is(wrong):
    with pytest.raises(InvalidArgument, match=r"give what `session.token` was"):
        decode(wrong, HERE)


@pytest.mark.parametrize("damaged", [
    TOKEN[:-1],
    TOKEN[:-4],
    TOKEN + "A",
    TOKEN + "AAAA",
    TOKEN + "====",
    TOKEN + "\n",
    TOKEN[:20] + "!!!!" + TOKEN[20:],
    TOKEN[:20] + " \n\t " + TOKEN[20:],
    TOKEN.replace("_", "/"),
    TOKEN[:4] + TOKEN[4:].replace("-", "+"),
    "tg1-",
    "tg1-é" + TOKEN[5:],
    TOKEN + TOKEN[4:],
])  # fmt: skip
def test_a_damaged_token_is_refused(damaged):
    """Also with characters that base64 passes over, and with those of its other alphabet."""
    assert damaged != TOKEN
    with pytest.raises(InvalidArgument, match="damaged or cut short"):
        decode(damaged, HERE)


def test_an_error_shows_no_more_of_a_token_than_tells_it_apart():
    with pytest.raises(InvalidArgument) as caught:
        decode(TOKEN + "A" * 10_000, HERE)
    assert len(str(caught.value)) < 200


def test_an_id_of_the_wrong_length_is_not_cut_to_fit():
    with pytest.raises(InvariantBroken):
        encode(HERE + b"more", SEEN)
