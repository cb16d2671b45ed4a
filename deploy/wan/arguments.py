"""The arguments and options of the command `farflung wan`."""

from __future__ import annotations

import argparse

from . import build, files


def parser() -> argparse.ArgumentParser:
    """The parser of `farflung wan`."""
    top = argparse.ArgumentParser(
        "farflung wan", description="A WAN in a box: emulated hosts and links on this machine."
    )
    top.add_argument("--debug", action="store_true", help="show tracebacks")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="up|check|exec|set|cut|restore|run|down|list")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="one object a line on stdout")
    fit = argparse.ArgumentParser(add_help=False)
    fit.add_argument(
        "--backend", choices=["auto", *build.BACKENDS], default="auto", help="netem (kernel) or relay (user space)"
    )
    fit.add_argument("--name", help="name of this WAN; two with different names live side by side")
    fit.add_argument("--scale", type=float, default=1.0, metavar="FACTOR", help="multiply every rate")
    fit.add_argument("--hosts-per-region", type=int, metavar="N", help="at most N hosts of each region")
    fit.add_argument("--congestion", metavar="NAME", help="TCP congestion control of every host: bbr, cubic, ...")

    def verb(name: str, words: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=words, description=words, parents=[common, *parents])

    sub = verb("up", "build a WAN", fit)
    sub.add_argument("topology", help=f"a file, FILE:CASE, or one of {', '.join(files.ready())}")
    sub.add_argument("--play", action="store_true", help="play the topology's timed changes")
    sub = verb("check", "measure every pair against what was set")
    sub.add_argument("topology")
    sub.add_argument("--picture", metavar="OUT.svg", help="draw the matrix")
    sub.add_argument("--quick", action="store_true", help="round trips only")
    sub = verb("exec", "run a command in a host")
    sub.add_argument("topology")
    sub.add_argument("host")
    sub.add_argument("command", nargs=argparse.REMAINDER)
    sub = verb("set", "change live links, or a host")
    sub.add_argument("topology")
    sub.add_argument(
        "target", help="'a->b' or 'a<->b', in quotes; or a host with all its links. a and b are hosts, regions or *"
    )
    sub.add_argument(
        "changes",
        nargs="+",
        metavar="KEY=VALUE",
        help="rate=20mbit delay=50ms jitter=2ms loss=1%% queue=100ms; of a host also uplink=20mbit downlink=100mbit",
    )
    sub = verb("cut", "cut the links between two, or a host off everybody")
    sub.add_argument("topology")
    sub.add_argument("a")
    sub.add_argument("b", nargs="?")
    sub = verb("restore", "put back what the file says: between two, of a host, or everything")
    sub.add_argument("topology")
    sub.add_argument("a", nargs="?")
    sub.add_argument("b", nargs="?")
    sub = verb("run", "train a job: a coordinator and nodes, each in its host", fit)
    sub.add_argument("topology")
    sub.add_argument("job")
    sub.add_argument("--state", metavar="DIR", help="the run's folder (default runs/NAME)")
    sub.add_argument("--nodes", metavar="HOST,...", help="the hosts that train (default: all)")
    sub.add_argument("--device", default="cpu", metavar="auto|cpu|cuda:N|mps", help="what trains")
    sub.add_argument("--insecure", action="store_true", help="no TLS")
    sub = verb("down", "remove a WAN, also after a crash")
    sub.add_argument("topology")
    verb("list", "the WANs that are up")
    return top
