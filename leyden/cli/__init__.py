"""The ``leyden`` command line. Each verb lives in its own module and is imported only when it is called.

stdout is data, stderr is talk. Exit status: 0 done, 1 the answer is no, 2 wrong use or input, 3 a part failed, 4 not allowed,
5 conflict, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from leyden.errors import EXTRAS, LeydenError, MissingExtra, UsageError

# Each is a module here with a function ``run`` (its annotations are the options), or with ``app`` (verbs of its own).
VERBS = {
    "store": "Start the rollout store.",
    "runners": "Run an agent on the store's tasks, in several processes.",
    "rollouts": "List rollouts, show, count, cancel them and queue them again.",
    "queues": "List queues; pause, resume and limit them.",
    "traces": "List what agents did, and show it call by call.",
    "tokens": "Show whether what is trained on is what the model sampled, call by call.",
    "workers": "List runner processes.",
    "token": "Make, list and revoke the tokens that a store asks for.",
    "sql": "Run one read-only query over the store's views.",
    "prune": "Delete rollouts that ended long ago.",
    "backup": "Copy a store into a file while it runs.",
    "restore": "Make a store of a backup.",
    "serve": "Serve a model directory with vLLM or the embedded engine.",
    "models": "Import models; list, show, verify and promote versions.",
    "eval": "Try an agent K times on every task of an environment.",
    "diff": "Compare two evals of one environment.",
    "gate": "Say whether a candidate may replace the champion; for CI.",
    "rescore": "Score the attempts of an eval again, with another scorer.",
    "export": "Make a dataset of an eval.",
    "pools": "Check that nothing measured is trained on; list and change task pools.",
    "quarantine": "List the calls of a run that are in none of its rows; try them again.",
    "runs": "List training runs and show what they came to.",
    "doctor": "Look for what would stop or spoil a run, and say what mends it.",
}

INTERRUPTED = 130


def main() -> int:
    """The console script ``leyden``. Returns the exit status."""
    return run(sys.argv[1:])


def store() -> int:
    """The console script ``store``: the same as ``leyden store``."""
    return run(["store", *sys.argv[1:]], program="store")


def run(args: Sequence[str], program: str | None = None) -> int:
    """Run one command line. What goes wrong becomes two lines on stderr, ``error:`` and ``hint:``, and the exit status."""
    end = args.index("--") if "--" in args else len(args)
    debug = "--debug" in args[:end]
    rest = [*(arg for arg in args[:end] if arg != "--debug"), *args[end:]]
    return reported(lambda: _dispatch(rest, debug, program), debug, "--json" in args[:end])


def reported(body: Callable[[], int | None], debug: bool = False, as_json: bool = False) -> int:
    """Call ``body``; the exit status (its own, or 0). For scripts that want to fail as ``leyden`` does: two lines, no traceback.

    ``as_json``: stdout gets the error as well, in the shape that HTTP answers have.
    """
    try:
        return body() or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except LeydenError as error:
        return _report(error, debug, as_json)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            return _report_bug(error, debug, as_json)
        return _report(MissingExtra(module, EXTRAS[module]), debug, as_json)
    except Exception as error:
        return _report_bug(error, debug, as_json)


def _dispatch(args: list[str], debug: bool, program: str | None) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(_help(), file=sys.stdout if args else sys.stderr)
        return 0 if args else UsageError.exit_code
    if args[0] == "--version":
        from importlib.metadata import version

        print(f"leyden {version('leyden')}")
        return 0
    if args[0] not in VERBS:
        raise UsageError(f"no verb {args[0]!r}", _nearest(args[0]))
    return _call(args[0], args[1:], program or f"leyden {args[0]}", debug)


def _call(verb: str, args: list[str], program: str, debug: bool) -> int:
    from importlib import import_module

    import typer
    from typer.exceptions import TyperException
    from typer.main import get_command

    module = import_module(f"leyden.cli.{verb}")
    if hasattr(module, "app"):
        app = module.app
    else:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command()(module.run)
    command = get_command(app)
    if debug and any("--debug" in parameter.opts for parameter in command.params):
        args = ["--debug", *args]  # it has processes of its own to tell
    try:
        status = command.main(args, prog_name=program, standalone_mode=False, help_option_names=["-h", "--help"])
    except TyperException as error:
        message, _, near = " ".join(error.format_message().split()).partition(" Did you mean ")
        message = message[:1].lower() + message[1:].rstrip(".")
        near = near.replace("'", "")
        raise UsageError(message, f"did you mean {near}" if near else f"see {program} --help") from error
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:{width}}  {text}" for name, text in VERBS.items())
    return f"""\
usage: leyden VERB [OPTIONS]

Train agents on what they did: a durable rollout store, runners, a capturing LLM proxy, and SFT on what passed.

verbs:
{verbs}

options:
  -h, --help  Show this, or a verb's options: leyden VERB --help
  --version   Show the version.
  --debug     Show the traceback of an error."""


def _nearest(word: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, VERBS, n=1)
    return f"did you mean leyden {near[0]}?" if near else "see leyden --help"


def _report(error: LeydenError, debug: bool, as_json: bool) -> int:
    _print_traceback(debug)
    _print_json(error, as_json)
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return error.exit_code


def _report_bug(error: Exception, debug: bool, as_json: bool) -> int:
    _print_traceback(debug)
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    _print_json(LeydenError(summary), as_json)
    print(f"error: {summary}", file=sys.stderr)
    if not debug:
        print("hint: this is not a failure that Leyden knows; see where with --debug", file=sys.stderr)
    return LeydenError.exit_code


def _print_json(error: LeydenError, as_json: bool) -> None:
    if as_json:
        from leyden.cli.printing import print_json

        print_json(**error.as_dict())


def _print_traceback(debug: bool) -> None:
    if debug:
        from traceback import print_exc

        print_exc()
