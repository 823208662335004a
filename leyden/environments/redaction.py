"""Personal data and secrets, found by their shapes and replaced by what kind they were.

The patterns are conservative: numbers that are reckoned with and code that is read must come through byte for byte, so a shape that is
also arithmetic (123-45-6789, 4111111111111111) counts only beside a word that says what it is, or where a checksum does.
What they cannot see: names, addresses, and whatever has no shape of its own.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What is sought, in this order; a text ``[EMAIL]`` stands where an e-mail address was."""

    PRIVATE_KEY = "private_key"
    JWT = "jwt"
    API_KEY = "api_key"  # of a shape that its issuer made known
    AWS_KEY = "aws_key"
    GITHUB_TOKEN = "github_token"
    BEARER = "bearer"  # what follows "Bearer"
    SECRET = "secret"  # a random value that a name like password= or token: introduces, or a URL holds as its password
    EMAIL = "email"
    IBAN = "iban"  # ISO 13616, its checksum right
    CARD = "card"  # a payment card: a known issuer, its Luhn digit right
    SSN = "ssn"
    PHONE = "phone"
    IP = "ip"  # public IPv4 and IPv6 addresses

    @property
    def placeholder(self) -> str:
        return f"[{self.upper()}]"


@dataclass(frozen=True)
class _Rule:
    kind: Kind
    pattern: re.Pattern[str]  # a group ``secret`` is what is replaced; without one, the whole match
    hint: Callable[[str], object]  # cheap, and true wherever the pattern may match
    holds: Callable[[re.Match[str]], bool] = lambda match: True


def redact_text(text: str, context: str = "") -> tuple[str, Counter[str]]:
    """``text`` with placeholders, and how many of each kind. ``context``: a name for it (a field's), which tells like a word before it."""
    found: Counter[str] = Counter()
    return _in_text(text, context, found), found


def redact_json(text: str) -> tuple[str, Counter[str]]:
    """Text that is JSON: redacted text by text, keys too, so that it still is; all else stays as it was written."""
    found: Counter[str] = Counter()
    return _in_json(text, found), found


def redact_row(row: dict[str, Any]) -> tuple[dict[str, Any], Counter[str]]:
    """One row of an export: its texts; those that are JSON (the arguments of a tool call, say) stay so. ``row`` itself is left alone."""
    found: Counter[str] = Counter()
    return _in_row(row, "", found), found


_NAMES = frozenset({"role", "type", "id", "tool_call_id", "name", "from"})  # what a row is held together by, never what was said in it


def _in_row(value: Any, key: str, found: Counter[str]) -> Any:
    if isinstance(value, str):
        if key in _NAMES:
            return value
        return _in_json(value, found) if value.lstrip()[:1] in ("{", "[") else _in_text(value, "", found)
    if isinstance(value, dict):
        return {name: _in_row(item, name, found) for name, item in value.items()}
    return [_in_row(item, key, found) for item in value] if isinstance(value, list) else value


# What stands between the signs of a JSON text: a string, which is a key where ":" follows; a number, whole where it is an integer.
_JSON_VALUE = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*")(?P<is_key>\s*:)?|(?P<number>-?\d[\d.eE+-]*)')


def _in_json(text: str, found: Counter[str]) -> str:
    """In place: what is not redacted stays as it was written."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return _in_text(text, "", found)
    context = ""

    def replaced(match: re.Match[str]) -> str:
        nonlocal context
        if match["number"]:
            number = match["number"]  # {"card": 4111111111111111}
            told = _in_text(number, context, found) if number.isdigit() and context else number
            return number if told == number else json.dumps(told)
        said = json.loads(match["text"])
        told = _in_text(said, "" if match["is_key"] else context, found)
        if match["is_key"]:
            context = said
        written = match["text"] if told == said else json.dumps(told, ensure_ascii=match["text"].isascii())
        return written + (match["is_key"] or "")

    return _JSON_VALUE.sub(replaced, text)


def _in_text(text: str, context: str, found: Counter[str]) -> str:
    prefix = f"{context}: " if context else ""
    whole = prefix + text
    for rule in _RULES:
        if rule.hint(whole):
            whole = _apply(rule, whole, found, len(prefix))
    return whole[len(prefix) :]


def _apply(rule: _Rule, text: str, found: Counter[str], start: int) -> str:
    parts: list[str] = []
    done = 0
    for match in rule.pattern.finditer(text):
        begin, end = match.span("secret" if "secret" in rule.pattern.groupindex else 0)
        if begin < max(start, done) or not rule.holds(match):
            continue
        parts += (text[done:begin], rule.kind.placeholder)
        done = end
        found[rule.kind] += 1
    return "".join([*parts, text[done:]]) if parts else text


# -- what makes a match one ------------------------------------------------------------------------------------------------


def _before(match: re.Match[str], length: int = 48) -> str:
    return match.string[max(0, match.start() - length) : match.start()]


def _is_reckoned_with(match: re.Match[str]) -> bool:
    """An operator, a number or a lone letter stands beside it."""
    before, after = _before(match).rstrip(" "), match.string[match.end() : match.end() + 8].lstrip(" ")
    return bool(re.search(r"(?:[\d)\]}+*/×÷=^%<>|&$#-]|(?<![^\W\d_])[A-Za-z])$", before) or re.match(r"[+*/×÷=^%<>-]|[.,]?\d", after))


def _named(words: str) -> Callable[[re.Match[str]], bool]:
    pattern = re.compile(rf"(?i)(?<![a-z])(?:{words})(?![a-z])")
    return lambda match: pattern.search(_before(match).replace("_", " ")) is not None


_is_named_card = _named("card|cards|visa|mastercard|amex|american express|discover|credit|debit|pan|cc|payment")
_is_named_phone = _named("phone|phones|telephone|tel|mobile|cell|fax|call|whatsapp|sms|dial|hotline|text me at|reach me at|contact")
_is_named_ssn = _named("ssn|social security|social|taxpayer")
_is_version = _named("v|ver|version|release|section|chapter|oid")


def _luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, annex B."""
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0


_ISSUED = re.compile(
    r"4\d{15}|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}|3[47]\d{13}|(?:6011|65\d\d|64[4-9]\d)\d{12}"
)


def _is_card(match: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", match[0])
    if not _ISSUED.fullmatch(digits) or not _luhn(digits):
        return False
    return _is_named_card(match) or (" " in match[0] and not _is_reckoned_with(match))


def _is_iban(match: re.Match[str]) -> bool:
    text = match[0].replace(" ", "")
    return 15 <= len(text) <= 34 and int("".join(str(int(sign, 36)) for sign in text[4:] + text[:4])) % 97 == 1


def _is_phone(match: re.Match[str]) -> bool:
    number = match[0]
    digits = sum(sign.isdigit() for sign in number)
    if number.startswith("+"):
        return (8 if re.search(r"[ .()-]", number) else 11) <= digits <= 15 and not _is_reckoned_with(match)
    if number.startswith("("):
        return not _is_reckoned_with(match)
    return _is_named_phone(match)


def _is_ip(match: re.Match[str]) -> bool:
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        return address in _IN_USE and address.is_global
    return address.is_global and max(address.packed) > 9 and not _is_version(match)  # 1.2.3.4 is a version, or a section


_IN_USE = ipaddress.IPv6Network("2000::/3")  # what is given out of IPv6 (RFC 4291, 2.4)


def _is_random(match: re.Match[str]) -> bool:
    """Not a word, a number or a name in a program: it mixes signs as random values do."""
    value = match["secret"]
    if match.string[match.end("secret") : match.end("secret") + 1] in ("(", "["):
        return False
    digits = sum(sign.isdigit() for sign in value)
    mixed = any(map(str.isupper, value)) and any(map(str.islower, value))
    if digits == 0 or not any(map(str.isalpha, value)) or (digits < 3 and re.fullmatch(r"[A-Za-z_][\w.]*", value)):
        return False
    entropy = -sum(share * math.log2(share) for share in (n / len(value) for n in Counter(value).values()))
    return entropy >= 3.0 and (mixed or (len(value) >= 20 and re.fullmatch(r"[0-9a-fA-F-]+|[0-9a-z]+", value) is not None))


_has_long_number = re.compile(r"\d[\d -]{11}").search
_has_ssn = re.compile(r"\d-\d\d-\d{4}").search
_has_phone = re.compile(r"\+[1-9]|\d{3}\)? ?[-. ]?\d{3}[-. ]\d{4}").search
_has_ip = re.compile(r"\d\.\d{1,3}\.\d|[23][0-9A-Fa-f]{3}:").search
_BEGIN_KEYS = ("sk-", "k_live_", "k_test_", "xox", "AIza", "glpat-", "hf_", "npm_", "pypi-", "SG.", "dop_v1_")
_SECRET_WORDS = ("key", "secret", "token", "passw", "pwd", "credential")


def _has_secret_word(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _SECRET_WORDS)


_TLDS = (
    "com|org|net|edu|gov|mil|int|info|biz|io|ai|dev|app|co|me|eu|uk|de|fr|es|it|nl|be|ch|at|se|no|dk|fi|pl|cz|pt|ie|gr|ru|ua|tr|il|in|cn|jp|"
    "kr|tw|hk|sg|my|th|vn|id|ph|au|nz|ca|us|mx|br|ar|cl|pe|za|ng|ke|eg|ae|sa|test|example|invalid|email|online|xyz|tech|cloud|site|name"
)
_NAME_OF_SECRET = (
    "api[_-]?key|apikey|secret(?:[_-]?(?:access[_-]?)?key)?|access[_-]?(?:key|token)|auth[_-]?token|refresh[_-]?token|token|password|passwd|pwd|"
    "credentials?|private[_-]?key"
)

_RULES = (
    _Rule(
        Kind.PRIVATE_KEY,
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:.{0,20000}?-----END [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----|(?:(?:\\n|\s){0,4}[A-Za-z0-9+/=]{32,})+)",  # or cut short
            re.DOTALL,
        ),
        lambda text: "PRIVATE KEY" in text,
    ),
    _Rule(
        Kind.JWT,
        re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
        lambda text: "eyJ" in text,
    ),
    _Rule(
        Kind.API_KEY,
        re.compile(
            r"(?<![\w-])(?:sk-(?=[A-Za-z_-]*\d)[\w-]{20,}|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|AIza[\w-]{35}|"
            r"glpat-[\w-]{20,}|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{40,}|SG\.[\w-]{16,}\.[\w-]{16,}|dop_v1_[0-9a-f]{64})"
        ),
        lambda text: any(begin in text for begin in _BEGIN_KEYS),
    ),
    _Rule(
        Kind.AWS_KEY, re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Za-z0-9])"), lambda text: "AKIA" in text or "ASIA" in text
    ),
    _Rule(
        Kind.GITHUB_TOKEN,
        re.compile(r"(?<![A-Za-z0-9_])(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,})"),
        lambda text: "gh" in text or "github_pat_" in text,
    ),
    _Rule(
        Kind.BEARER,
        re.compile(r"(?i)\bbearer\s{1,4}(?=[A-Za-z._~+/=-]*\d)(?P<secret>[A-Za-z0-9._~+/=-]{16,})"),
        lambda text: "earer" in text or "EARER" in text,
    ),
    _Rule(
        Kind.SECRET,
        re.compile(
            rf"(?i)(?<![a-z])(?:[a-z0-9]{{1,32}}[_-]){{0,4}}(?:{_NAME_OF_SECRET})[\"']?\s{{0,4}}(?:=>|[=:])\s{{0,4}}[\"']?"
            rf"(?P<secret>[A-Za-z0-9+/_.~!@#%^&*=-]{{12,}})"
        ),
        _has_secret_word,
        _is_random,
    ),
    _Rule(
        Kind.SECRET,
        re.compile(r"://[^\s:/?#@]{0,64}:(?P<secret>[^\s:/?#@]{8,})@"),
        lambda text: "://" in text,
        _is_random,
    ),
    _Rule(
        Kind.EMAIL,
        re.compile(rf"(?<![\w.+/@-])(?!git@)[A-Za-z0-9][\w.+-]{{1,63}}@(?:[A-Za-z0-9-]{{1,63}}\.)+(?:{_TLDS})(?![\w(\[-])(?!\.\w)"),
        lambda text: "@" in text,
    ),
    _Rule(
        Kind.IBAN,
        re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])"),
        _has_long_number,
        _is_iban,
    ),
    _Rule(
        Kind.CARD,
        re.compile(r"(?<![\w.,-])(?<!\d )(?:\d{4}[ -]\d{4}[ -]\d{4}[ -]\d{4}|3\d{3}[ -]\d{6}[ -]\d{5}|\d{15,16})(?![\w-]|[.,]\d| \d)"),
        _has_long_number,
        _is_card,
    ),
    _Rule(
        Kind.SSN,
        re.compile(r"(?<![\w.-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-]|\.\d)"),
        _has_ssn,
        _is_named_ssn,
    ),
    _Rule(
        Kind.PHONE,
        re.compile(
            r"(?<![\w.+-])\+[1-9]\d{0,2}(?:[ .-]?\(?\d{1,4}\)?){2,5}(?!\w|[.,-]\d)"
            r"|(?<![\w.)-])\([2-9]\d{2}\) ?[2-9]\d{2}[-. ]\d{4}(?![\w-]|[.,]\d)"
            r"|(?<![\w.-])[2-9]\d{2}[-. ][2-9]\d{2}[-. ]\d{4}(?![\w-]|[.,]\d)"
        ),
        _has_phone,
        _is_phone,
    ),
    _Rule(
        Kind.IP,
        re.compile(r"(?<![\w.:-])(?:(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)|[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{4,34}(?![\w:-]))"),
        _has_ip,
        _is_ip,
    ),
)
