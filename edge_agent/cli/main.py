"""`headwater VERB ...`: finds a command and runs it. Each verb is a module with HELP, EXAMPLES, add_arguments and main.

Only the module of the called verb is imported, so that commands start fast on a small gateway.
Exit codes: 0 done; 1 the result is negative; 2 wrong use or configuration; 3 something is not available.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, Protocol, cast

from edge_agent import __version__
from edge_agent.config.checking.foreign_json import printable
from edge_agent.errors import ConfigError, PortError

VERBS: Final = {  # name -> line of `headwater --help`, in the order of first use
    "init": "write settings with comments to start from",
    "check": "list every mistake of a configuration",
    "run": "run a gateway: sensor readings to partials for the parent",
    "merge": "run a region: merge the partials of gateways and pass them on",
    "land": "run the top of the tree: frames to landing files on disk",
    "root": "run the Spark job: landing files to Delta tables",
    "query": "read the tables with SQL, without Spark",
    "status": "list the nodes of a broker and their configuration",
    "accept-loss": "give up frames that wait for a parent which will not come back",
    "audit": "prove that no reading is lost without a record or counted twice",
    "peek": "print the messages of a broker, frames as text",
    "explain": "show where the parts of a query are computed, and why",
    "simulate": "run sensors and queries here, without a network",
    "replay": "run recordings through the tree and print the results",
    "maintain": "compact and clean the tables",
    "ca": "keep the certificate authority of a fleet",
    "enrol": "get and renew the certificate of a node",
    "image": "put a configuration on the gateway image",
    "update": "install another version of the agent on the gateway image, with a way back",
    "broker-config": "write the configuration of a broker",
    "demo": "run the whole tree here, kill parts of it, compare the results",
}
OF_THE_FLEET: Final = (
    "status",
    "accept-loss",
    "ca",
    "enrol",
    "image",
    "update",
    "broker-config",
)  # modules of cli/fleet
NODES: Final = ("run", "merge")
COMMAND_OF: Final = {"gateway": "run", "region": "merge", "root": "land"}  # role -> verb that runs the node
WITHOUT_PACKAGES: Final = (
    "init",
    "query",
    "status",
    "accept-loss",
    "ca",
    "enrol",
    "update",
    "broker-config",
)  # verbs that read no sensors or queries; installed packages are not loaded for them
DONE: Final = 0
MISUSED: Final = 2
UNAVAILABLE: Final = 3
INTERRUPTED: Final = 130  # exit code of shells after Ctrl-C
FULL: Final = (errno.ENOSPC, errno.EDQUOT)  # of a disk, as in `headwater init - > file`
ESCAPED: Final = "headwater.escaped"  # name of the handler for letters that standard output cannot show
BROKEN_PIPE: Final = 141  # exit code after SIGPIPE, as in `headwater query ... | head`

EXTRAS: Final = {  # library -> the extra that installs it
    "pyspark": "cloud",
    "delta": "cloud",
    "deltalake": "cloud",
    "arro3": "cloud",
    "pyarrow": "cloud",
    "pandas": "cloud",
    "matplotlib": "demo",
    "cryptography": "ca",
}
OF_DEBIAN: Final = ("cryptography", "matplotlib")  # those that Debian has new enough


class Verb(Protocol):
    """The module of one verb."""

    HELP: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the verb's options."""

    def main(self, args: argparse.Namespace) -> int:
        """Run the verb. Returns its exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Prints errors on standard error. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # it was closed
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        codecs.register_error(ESCAPED, _escaped)
        sys.stdout.reconfigure(errors=ESCAPED)
    try:
        try:
            code = _verb(words) if words and words[0] in VERBS else _front(words)
        except SystemExit:  # of argparse, after --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # here, so that a full disk or a closed pipe is met below
        return code
    except ConfigError as err:
        return complain(str(err), MISUSED)
    except PortError as err:
        return complain(str(err), UNAVAILABLE)
    except ModuleNotFoundError as err:
        library = (err.name or "").partition(".")[0]
        if (extra := EXTRAS.get(library)) is None:
            raise
        debian = f", or on Debian: apt install python3-{library}" if library in OF_DEBIAN else ""
        hint = f"in a checkout of Headwater: pip install '.[{extra}]'{debian}"
        return complain(f"{words[0]} needs {err.name}; {hint}", UNAVAILABLE)
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as err:
        if (why := _without_folder(err)) is not None:
            return complain(why, UNAVAILABLE)
        if err.errno not in FULL:
            raise
        _drop_output()
        what = f"cannot write {err.filename}" if err.filename else "cannot write"
        return complain(f"{what}: {(err.strerror or str(err)).lower()}; free some space", UNAVAILABLE)
    except KeyboardInterrupt:
        return INTERRUPTED


def _without_folder(err: OSError) -> str | None:
    """What to say of an error that is about no file but a folder that is not there; None of any other error."""
    if err.errno != errno.ENOENT or err.filename is not None:
        return None
    try:
        os.getcwd()  # noqa: PTH109 - as tempfile and pathlib ask
    except FileNotFoundError:
        return "the current folder was deleted; go to another one"
    if str(err.strerror).startswith("No usable temporary directory"):  # of tempfile, also where all disks are full
        return "no folder for temporary files can be written; free some space, or set TMPDIR"
    return None


def _escaped(err: UnicodeError) -> tuple[str, int]:
    """What the encoding of the terminal does not have, or is no text, such as a file's name: as JSON escapes it."""
    assert isinstance(err, UnicodeEncodeError)
    return json.dumps(err.object[err.start : err.end])[1:-1], err.end


def _verb(words: Sequence[str]) -> int:
    verb = load(words[0])
    args = parser_of(words[0], verb).parse_args(words[1:])
    needs_packages = words[0] not in WITHOUT_PACKAGES
    return _with_packages(verb, args, edge=words[0] in NODES) if needs_packages else verb.main(args)


def _drop_output() -> None:
    """What is still buffered goes nowhere, else Python reports an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _with_packages(verb: Verb, args: argparse.Namespace, *, edge: bool) -> int:
    """Load the installed packages, run the verb, then print failures of the packages. edge: the verb runs a node."""
    from edge_agent import packages

    packages.install(edge=edge)
    try:
        return verb.main(args)
    finally:
        packages.complain()


def _front(words: Sequence[str]) -> int:
    """Handle `headwater` without a known verb: the help, `--version`, or an error."""
    width = max(map(len, VERBS))
    parser = argparse.ArgumentParser(
        prog="headwater",
        usage="headwater VERB [options]",
        description="Aggregates sensor readings in windows at the edge, merges over MQTT, stores in Delta Lake.",
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
        print(f"headwater {__version__}")
        return DONE
    verbs: list[str] = args.verb
    unknown = verbs[0] if verbs else words[0]
    return complain(f"no such verb: {unknown}{_nearest(verbs)}; `headwater --help` lists them", MISUSED)


def _nearest(verbs: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(verbs[0], VERBS, n=1) if verbs else []
    return f"; did you mean {near[0]}?" if near else ""


def load(name: str) -> Verb:
    """Import the module of a verb of VERBS."""
    return cast("Verb", import_module(module_of(name)))


def module_of(name: str) -> str:
    """The name of a verb's module."""
    room = "edge_agent.cli.fleet" if name in OF_THE_FLEET else "edge_agent.cli"
    return f"{room}.{name.replace('-', '_')}"


def parser_of(name: str, verb: Verb) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"headwater {name}",
        description=verb.HELP,
        epilog=f"examples:\n{verb.EXAMPLES.rstrip()}" if verb.EXAMPLES else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_arguments(parser)
    return parser


def complain(text: str, code: int = UNAVAILABLE) -> int:
    """Print each line of a text on standard error. Returns `code`."""
    for line in text.splitlines():
        print(f"headwater: {printable(line)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
