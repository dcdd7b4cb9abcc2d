"""`headwater VERB ...`: the front. A verb is a module here with HELP, EXAMPLES, add_arguments(parser), main(args).

Only the module of the verb that is called is imported: `headwater --help` must be quick on a small gateway.
Exit codes: 0 done; 1 the answer is no; 2 wrong use or configuration; 3 a part is not available.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, Protocol, cast

from edge_agent.errors import ConfigError, PortError

VERBS: Final = {  # name -> one line for `headwater --help`, in the order a user meets them
    "init": "write a commented configuration to start from",
    "check": "read a configuration and name every mistake at once",
    "run": "be a gateway: sensors to partials to the parent",
    "merge": "be a region: children's partials merged and passed on",
    "land": "be the top of the tree: frames to fsynced landing files",
    "root": "landing files to Delta tables, with Spark",
    "query": "SQL over the tables, without Spark",
    "status": "which nodes are there, with what configuration",
    "peek": "print what passes a broker, frames as text",
    "explain": "where the parts of a query are computed, and why",
    "simulate": "run sensors and queries here, without a network",
    "replay": "run recordings through the tree and print the results",
    "maintain": "compact and clean the tables",
    "demo": "the whole tree on this machine, with kills, compared with the truth",
}
NODES: Final = ("run", "merge")
WITHOUT_PACKAGES: Final = ("init", "query", "status")  # verbs that read no definition: they need not look for any
DONE: Final = 0
NO: Final = 1
MISUSED: Final = 2
UNAVAILABLE: Final = 3
INTERRUPTED: Final = 130  # as shells say for Ctrl-C
BROKEN_PIPE: Final = 141  # `headwater query ... | head`

EXTRAS: Final = {  # a library that is missing -> the extra that brings it
    "pyspark": "cloud",
    "delta": "cloud",
    "deltalake": "cloud",
    "arro3": "cloud",
    "pyarrow": "cloud",
    "pandas": "cloud",
    "matplotlib": "demo",
}


class Verb(Protocol):
    """What a module of this room offers."""

    HELP: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the verb's options."""

    def main(self, args: argparse.Namespace) -> int:
        """Do it; the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. The users' entry point: what goes wrong is one line with the next step."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in VERBS:
        return _front(words)
    try:
        verb = load(words[0])
        args = parser_of(words[0], verb).parse_args(words[1:])
        if words[0] not in WITHOUT_PACKAGES:
            return _with_packages(verb, args, edge=words[0] in NODES)
        return verb.main(args)
    except ConfigError as err:
        return _say(str(err), MISUSED)
    except PortError as err:
        return _say(str(err), UNAVAILABLE)
    except ModuleNotFoundError as err:
        if (extra := EXTRAS.get((err.name or "").partition(".")[0])) is None:
            raise
        return _say(f"{words[0]} needs {err.name}: pip install 'headwater[{extra}]'", UNAVAILABLE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains at its end
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED


def _with_packages(verb: Verb, args: argparse.Namespace, *, edge: bool) -> int:
    """Run a verb that reads definitions, with the packages installed; at the end print what failed in them."""
    from edge_agent import packages

    packages.install(edge=edge)
    try:
        return verb.main(args)
    finally:
        packages.complain()


def _front(words: Sequence[str]) -> int:
    """`headwater`, `--help`, `--version`, or a verb that is none."""
    width = max(map(len, VERBS))
    parser = argparse.ArgumentParser(
        prog="headwater",
        usage="headwater VERB [options]",
        description="Windowed aggregates where the data is born, merged over MQTT, landed in Delta Lake.",
        epilog="verbs:\n"
        + "\n".join(f"  {name:{width}}  {line}" for name, line in VERBS.items())
        + "\n\n`headwater VERB --help` shows its options with examples. Try `headwater demo` first.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the installed version")
    if not words:
        parser.print_help()
        return DONE
    parser.add_argument("verb", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_known_args(words)[0]
    if args.version:
        print(f"headwater {version()}")
        return DONE
    given: list[str] = args.verb
    return _say(
        f"no such verb: {given[0] if given else words[0]}{_nearest(given)}; `headwater --help` lists them", MISUSED
    )


def _nearest(given: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(given[0], VERBS, n=1) if given else []
    return f"; did you mean {near[0]}?" if near else ""


def load(name: str) -> Verb:
    """The module of a verb of VERBS."""
    return cast("Verb", import_module(f"edge_agent.cli.{name}"))


def parser_of(name: str, verb: Verb) -> argparse.ArgumentParser:
    """The parser of one verb."""
    parser = argparse.ArgumentParser(
        prog=f"headwater {name}",
        description=verb.HELP,
        epilog=f"examples:\n{verb.EXAMPLES.rstrip()}" if verb.EXAMPLES else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_arguments(parser)
    return parser


def version() -> str:
    """The installed version, as in a birth."""
    from importlib import metadata  # costs more than all the rest of `headwater --help`

    return metadata.version("headwater")


def coloured() -> bool:
    """Whether standard output is a terminal that wants colour (https://no-color.org)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _say(text: str, code: int) -> int:
    """Talk goes to standard error, a line each; data goes to standard output."""
    for line in text.splitlines():
        print(f"headwater: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
