import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.environments.redaction import Kind, redact_json, redact_row, redact_text

KEY = "Zm9vYmFy" + "QmF6UXV4MTIz"

FOUND = {
    "write to bob.smith+x@mail.acme.co.uk.": ("write to [EMAIL].", Kind.EMAIL),
    "call +1 (415) 555-2671 now": ("call [PHONE] now", Kind.PHONE),
    "+49 30 1234567": ("[PHONE]", Kind.PHONE),
    "my phone is 415-555-2671": ("my phone is [PHONE]", Kind.PHONE),
    "(415) 555-2671": ("[PHONE]", Kind.PHONE),
    "IBAN DE89 3704 0044 0532 0130 00, thanks": ("IBAN [IBAN], thanks", Kind.IBAN),
    "GB82WEST12345698765432": ("[IBAN]", Kind.IBAN),
    "my card: 4111111111111111": ("my card: [CARD]", Kind.CARD),
    "pay with 5555 5555 5555 4444": ("pay with [CARD]", Kind.CARD),
    "amex 3782-822463-10005": ("amex [CARD]", Kind.CARD),
    "from 84.23.99.1:443": ("from [IP]:443", Kind.IP),
    "host 2001:4860:4860::8888 answers": ("host [IP] answers", Kind.IP),
    "SSN: 123-45-6789": ("SSN: [SSN]", Kind.SSN),
    "key sk-proj-abc123DEF456ghi789JKL": ("key [API_KEY]", Kind.API_KEY),
    f"redis://:{KEY}@10.0.0.1:6379": ("redis://:[SECRET]@10.0.0.1:6379", Kind.SECRET),
    "hf_aB3dE5gH7jK9mN0pQ2rS4tU6vW8xY1zA3b": ("[API_KEY]", Kind.API_KEY),
    "AKIAIOSFODNN7EXAMPLE": ("[AWS_KEY]", Kind.AWS_KEY),
    "ghp_" + "a1B2" * 9: ("[GITHUB_TOKEN]", Kind.GITHUB_TOKEN),
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl": ("[JWT]", Kind.JWT),
    "Authorization: Bearer abcdef0123456789abcdef": ("Authorization: Bearer [BEARER]", Kind.BEARER),
    f"DB_PASSWORD='{KEY}'": ("DB_PASSWORD='[SECRET]'", Kind.SECRET),
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": ("aws_secret_access_key = [SECRET]", Kind.SECRET),
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n": ("[PRIVATE_KEY]\n", Kind.PRIVATE_KEY),
}


@pytest.mark.parametrize("text", FOUND, ids=range(len(FOUND)))
def test_personal_data_and_secrets_are_replaced_by_their_kind(text):
    expected, kind = FOUND[text]
    assert redact_text(text) == (expected, {kind: 1})
    assert redact_text(expected)[1] == {}  # a placeholder is nothing to redact


CUT_SHORT = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n" * 3


def test_a_private_key_that_was_cut_short_is_one_and_a_word_about_them_is_none():
    assert redact_text(CUT_SHORT + " and so on")[0] == "[PRIVATE_KEY]\n and so on"
    about = "A file that begins with -----BEGIN PRIVATE KEY----- is one you should not share."
    assert redact_text(about) == (about, {})


@pytest.mark.parametrize(
    "text", ["a_" * 50_000 + "=", "a@" * 50_000, "1-" * 50_000, "12 " * 30_000, "1." * 50_000, "token=" * 20_000, "(" * 100_000]
)
def test_long_texts_do_not_make_it_search_without_end(text):
    assert redact_text(text) == (text, {})


UNTOUCHED = [
    "555-234-4567", "123-45-6789", "What is 415-555-2671?", "Multiply 4111111111111111 by 2.", "4111 1111 1111 1112",
    "(12) 345-6789 + 1", "3 +14155552671", "x = +14155552671 * 2", "Sort 4111 1111 1111 1111 5555.", "1.2.3.4", "version 84.23.99.1",
    "10.0.0.1", "12:34:56", "a[1::2]", "std::vector<int>", "x@W.to(device)", "A@B.inv()", "@dataclass",
    "git clone git@github.com:org/repo.git", "token = tokens[0]", "password = get_password_v2(user)",
    "api_key=os.environ['KEY_2024_PROD']", "secret = SecretStr", "max_tokens: 4096", "the bearer documents",
    "sk-learn is fine, sk-is-a-word-without-any-number", "DE89 3704 0044 0532 0130 01", "3.14159265358979323846", "2718281828459045",
    "for i in range(1000000000000000): pass", "0x4111111111111111", "f(a, b) = 10 - 20 - 3000", "7 × 8 = 56", "1,234,567.89",
]  # fmt: skip


@pytest.mark.parametrize("text", UNTOUCHED)
def test_numbers_that_are_reckoned_with_and_code_come_through(text):
    assert redact_text(text) == (text, {})


def test_a_thousand_arithmetic_problems_are_unchanged():
    rng = random.Random(7)

    def number():
        return rng.choice([rng.randint(0, 99), rng.randint(100, 9999), rng.randint(10**6, 10**17), round(rng.uniform(0, 1e4), 3)])

    for _ in range(1000):
        sign, space = rng.choice("+-*/×−"), rng.choice(["", " "])
        chain = f"{space}{sign}{space}".join(str(number()) for _ in range(rng.randint(2, 5)))
        text = rng.choice(["What is {}?", "Compute {} =", "{}", "({}) mod 97", "calculate('{}')", '{{"expression": "{}"}}']).format(chain)
        assert redact_text(text) == (text, {}), text
        assert redact_json(text) == (text, {})


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_characters="@+.:-_=0123456789", exclude_categories=["Nd"])))
def test_text_without_any_shape_stays_byte_identical(text):
    assert redact_text(text) == (text, {})


@settings(max_examples=100, deadline=None)
@given(st.text(), st.sampled_from(sorted(FOUND)), st.text())
def test_redacting_twice_is_redacting_once(before, found, after):
    once, _ = redact_text(f"{before}\n{found}\n{after}")
    assert redact_text(once) == (once, {})


def test_a_field_s_name_tells_what_its_value_is():
    text = json.dumps({"ssn": "123-45-6789", "expression": "123-45-6789", "card": 4111111111111111, "n": 12})
    redacted, found = redact_json(text)
    assert json.loads(redacted) == {"ssn": "[SSN]", "expression": "123-45-6789", "card": "[CARD]", "n": 12}
    assert found == {Kind.SSN: 1, Kind.CARD: 1}


def test_what_holds_a_row_together_is_left_alone():
    row = {"messages": [{"role": "tool", "tool_call_id": "bob@acme.org", "content": "bob@acme.org"}]}
    redacted, _ = redact_row(row)
    assert redacted["messages"][0] == {"role": "tool", "tool_call_id": "bob@acme.org", "content": "[EMAIL]"}
    assert row["messages"][0]["content"] == "bob@acme.org"
