"""The front door: what a person types. Each command parses its words and calls a room.

Nothing heavy is imported before a command needs it: ``--help``, ``status`` and ``job init`` answer without torch.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import __version__
from .cli.common import command, execute, new_app, reported
from .cli.screen.output import INTERRUPTED, Output
from .proto.errors import FarflungError

if TYPE_CHECKING:
    from .proto.link import Link

_ANSWER_SECONDS = 10.0

app = new_app()
coordinator = new_app("Start a run and look after it.")
job = new_app("Job files.")
app.add_typer(coordinator, name="coordinator")

_State = Annotated[Path | None, typer.Option("--state", help="The run's folder.", show_default="runs/NAME")]
_LinkFile = Annotated[
    Path | None,
    typer.Option("--link-file", metavar="FILE", help="Write the link there too, for its owner's eyes only."),
]
_Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS anywhere: only for a network that you trust.")]
_Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda:N|mps", help="What trains.")]


@app.callback(invoke_without_command=True)
def front_door(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Train and fine-tune large models on accelerators that are far apart.

    Try `farflung demo`; then `farflung job init`, `farflung run job.toml`.
    """
    if version:
        typer.echo(f"farflung {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _check_codec(spec: str, role: str) -> None:
    """Whether a job may use this codec in this place; the coordinator and the job know no codec themselves."""
    from .compress import check

    check(spec, role)


# ---- train ---------------------------------------------------------------------------------


@command(app)
def demo(
    output: Output,
    *,
    state: _State = None,
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes.")] = 4,
) -> int:
    """Four nodes train on Shakespeare on this machine.

    Starts a coordinator and the nodes, and ends with the folder of a model and a sample of its text.
    """
    from .cli.demo import demo as play
    from .examples.shakespeare import write_text

    return play(output, state, nodes, write_text)


@command(app)
def run(
    output: Output,
    job: Annotated[Path, typer.Argument(help="The job file.")],
    *,
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes to start.")] = 4,
    state: _State = None,
    device: _Device = "auto",
    insecure: _Insecure = False,
) -> int:
    """Your job, everything on this machine.

    Starts a coordinator and N nodes; starting again with the same state folder goes on.
    """
    from .cli.local.run import LocalRun
    from .cli.local.run import run as run_here
    from .cli.next_words import following
    from .cli.screen.terminal import screen
    from .job.files import load_job

    read = load_job(job, check_codec=_check_codec)
    code = tuple({one.partition(":")[0] for one in (read.model.build, read.data.build) if one})
    plan = LocalRun(job, state or Path("runs") / read.run.name, nodes, device, code, insecure, output.debug)
    view = screen(output)
    try:
        with view:
            status = run_here(plan, view.show)
    except KeyboardInterrupt:
        output.note(view.story.parting())
        return INTERRUPTED
    if status == 0:
        with contextlib.suppress(OSError):  # the run is done all the same
            output.say(following(view.story.state, read.model))
    return status


@command(coordinator)
def start(
    output: Output,
    job: Annotated[Path, typer.Argument(help="The job file.")],
    *,
    state: _State = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = "0.0.0.0:7070",
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address that the link has, where it differs.")
    ] = None,
    min_nodes: Annotated[
        int | None, typer.Option(min=1, help="Begin when so many nodes are in.", show_default="the job's")
    ] = None,
    link_file: _LinkFile = None,
    insecure: _Insecure = False,
    dial_back: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK",
            help="A network in which nodes are dialled back too, like 10.0.0.0/8. Repeat it for more.",
            show_default="only where a join comes from",
        ),
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where the web page is.", show_default="127.0.0.1:7071, or a free port"),
    ] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="No web page and no metrics.")] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write loss, speed and bytes for TensorBoard.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Send them to a project of Weights & Biases.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="postgresql://...: the run's database, for coordinators on several machines."),
    ] = None,
    lifeline: Annotated[bool, typer.Option("--lifeline", hidden=True)] = False,
) -> int:
    """Start a run, or go on with one.

    Prints the line that nodes join with. The same state folder resumes from the newest checkpoint.
    """
    from .cli.linkfile import write_link
    from .cli.next_words import following
    from .cli.screen.terminal import screen
    from .coordinator.serve.serve import serve
    from .job.files import load_job

    if lifeline:
        _hold_lifeline()
    os.umask(0o077)  # keys, tokens and data in the state folder are for its owner
    with screen(output) as view:

        def emit(event: dict[str, Any]) -> None:
            if link_file is not None and event["event"] == "listening":
                write_link(link_file, event["link"])
            view.show(event)

        status = serve(
            job,
            state,
            listen,
            advertise,
            min_nodes=min_nodes,
            insecure=insecure,
            emit=emit,
            check_codec=_check_codec,
            page=None if no_page else page or "",
            database=database,
            tensorboard=tensorboard,
            wandb=wandb,
            dial_back=dial_back or (),
        )
    if status == INTERRUPTED:
        output.note(view.story.parting())
    elif status == 0 and view.story.state:
        with contextlib.suppress(OSError):  # the run is done all the same
            output.say(following(view.story.state, load_job(job).model))
    return status


@command(app)
def join(
    output: Output,
    link: Annotated[
        str,
        typer.Argument(
            envvar="FARFLUNG_LINK",
            help="farflung://HOST:PORT/#TICKET, as the coordinator prints it; @FILE: what FILE holds.",
        ),
    ],
    *,
    device: _Device = "auto",
    name: Annotated[str | None, typer.Option(help="This node's name.", show_default="the next free node-N")] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the other nodes reach this one.")
    ] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = None,
    allow_code: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", help="A module whose functions the job may call.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Where this node keeps its key and fetched data.")] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where Prometheus finds this node's metrics.")
    ] = None,
    insecure: _Insecure = False,
    pause_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The node pauses while this file exists; so it does on SIGUSR1.")
    ] = None,
    island: Annotated[
        int, typer.Option(min=1, metavar="N", help="So many devices of this machine, from --device on, as one node.")
    ] = 1,
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Private data, for a run whose nodes have their own.")
    ] = None,
    require: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="Only if the run is all of these: private, secure, robust, no-code, tls."),
    ] = None,
    max_upload: Annotated[
        str | None, typer.Option(metavar="RATE", help="The most that it sends, e.g. 20mbit, all links together.")
    ] = None,
    max_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Of the device, e.g. 6GB.")] = None,
    max_disk: Annotated[str | None, typer.Option(metavar="SIZE", help="For the training data that it keeps.")] = None,
    hours: Annotated[float | None, typer.Option(min=0.0, help="It leaves after so many.")] = None,
    lifeline: Annotated[bool, typer.Option("--lifeline", hidden=True)] = False,
) -> int:
    """Join a run with this machine.

    Measures the device and the links, gets a stage of the model and trains. Ctrl-C leaves politely.
    """
    from .cli.linkfile import link_text
    from .cli.own_data import opener
    from .cli.screen.terminal import screen
    from .deploy.wan import units
    from .node.join import find
    from .node.promises import required_of
    from .proto.link import parse_link

    address, required = parse_link(link_text(link)), required_of(require)
    upload = units.rate(max_upload, "--max-upload") or 0.0
    memory, disk = (
        units.size(text, name) if text else 0 for text, name in ((max_memory, "--max-memory"), (max_disk, "--max-disk"))
    )
    # Idle threads must not spin while another process has their core; read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    find(address)  # before the seconds that torch takes: a wrong address is a matter of milliseconds
    from .node.agent import Interrupted
    from .node.agent import run as run_node
    from .node.device.limits import Limits

    if lifeline:
        _hold_lifeline()
    try:
        with screen(output) as view:
            return run_node(
                address,
                device=device,
                island=island,
                name=name,
                advertise=advertise,
                listen=listen,
                allow_code=tuple(allow_code or ()),
                cache=cache,
                insecure=insecure,
                metrics=metrics,
                pause_file=pause_file,
                limits=Limits(upload, memory, disk, hours or 0.0),
                own_data=None if data is None else opener(data),
                require=required,
                emit=view.show,
            )
    except Interrupted as interrupt:
        output.note(
            "interrupted; the run has heard a goodbye and goes on without this node; the same line joins again"
            if interrupt.heard
            else "interrupted; the coordinator did not answer, so the run has to find out by itself"
        )
        return INTERRUPTED


def _hold_lifeline() -> None:
    from .cli.local.children import hold_lifeline

    hold_lifeline()


# ---- look after a run ----------------------------------------------------------------------


@command(coordinator)
def token(
    output: Output,
    state: Annotated[str, typer.Argument(help="The run's folder, or its --database.")],
    *,
    ttl: Annotated[str, typer.Option(help="How long it admits nodes: 90s, 45m, 24h, 7d.")] = "24h",
    uses: Annotated[
        int | None,
        typer.Option(min=1, help="How many first joins; with --operator, commands.", show_default="100; commands: any"),
    ] = None,
    revoke: Annotated[str | None, typer.Option(metavar="ID", help="End this ticket instead.")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="A link for commands; it admits no node.")] = False,
) -> None:
    """Make another ticket for a run, or end one."""
    from .cli.screen.story import admits_text, hidden_join_line, join_line
    from .coordinator.trust.identity import parse_duration
    from .coordinator.trust.tickets import DEFAULT_USES, issue, revoke_ticket

    if revoke is not None:
        revoke_ticket(state, revoke)
        output.record({"revoked": revoke}) if output.json else output.say(f"ticket {revoke} admits nobody any more")
        return
    if uses is None and not operator:
        uses = DEFAULT_USES
    expires = time.time() + parse_duration(ttl)
    link = str(issue(state, ttl=ttl, uses=uses, operator=operator))
    if output.json:
        output.record({"link": link, "uses": uses, "expires": expires, "operator": operator})
        return
    if operator:
        number = f"{uses} command{'s' if uses != 1 else ''}" if uses else "any number of commands"
        output.note(f"the link gives {number} for {ttl} and admits no node; in a file, as @FILE, `ps` has it not")
        output.say(link)
    else:
        output.note(f"{admits_text(uses or 0, expires)}; where `ps` shows it to nobody:\n  {hidden_join_line(link)}")
        output.say(join_line(link))


_Target = Annotated[
    str, typer.Argument(metavar="STATE|LINK", help="The run's folder, or its link (@FILE: what FILE holds).")
]
_TheNode = Annotated[str, typer.Argument(metavar="NODE", help="The node.")]
_Node = Annotated[str | None, typer.Argument(help="The node; without it, the whole run.")]
_Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, for those who look at the run.")]


@command(coordinator)
def drain(output: Output, target: _Target, node: _TheNode, *, why: _Why = "") -> None:
    """Let a node hand over and leave; it has no place until `resume`."""
    _command(output, target, "drain", node, why=why)


@command(coordinator)
def evict(output: Output, target: _Target, node: _TheNode, *, why: _Why = "") -> None:
    """Put a node out at once, for good: its key and its name are refused from now on."""
    _command(output, target, "evict", node, why=why)


@command(coordinator)
def readmit(output: Output, target: _Target, node: _TheNode, *, why: _Why = "") -> None:
    """Let a node that was evicted join again."""
    _command(output, target, "readmit", node, why=why)


@command(coordinator)
def pause(output: Output, target: _Target, node: _Node = None, *, why: _Why = "") -> None:
    """Stop training after the step in work, of the whole run or of one node, until `resume`."""
    _command(output, target, "pause", node, why=why)


@command(coordinator)
def resume(output: Output, target: _Target, node: _Node = None, *, why: _Why = "") -> None:
    """Go on training: the run after `pause`, a node after `drain` or `pause`."""
    _command(output, target, "resume", node, why=why)


@command(coordinator, "set")
def set_value(
    output: Output,
    target: _Target,
    value: Annotated[str, typer.Argument(metavar="KEY=VALUE", help="As in the job file: train.learning_rate=0.0005")],
    *,
    why: _Why = "",
) -> None:
    """Change a job value at the next view: steps, learning rate and schedule, codecs, checkpoints, evaluation."""
    _command(output, target, "set", argument=value, why=why)


def _command(
    output: Output, target: str, kind: str, node: str | None = None, argument: str = "", why: str = ""
) -> None:
    """Give a running coordinator a command, and show its answer."""
    import getpass
    import socket

    from .cli.linkfile import link_text
    from .proto.control_pb2 import CommandRequest

    target = link_text(target)
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    with _operating(target) as link:
        request = CommandRequest(
            run=link.run, ticket=link.ticket, command=kind, node=node or "", argument=argument, by=by, why=why
        )
        answer = _ask(link, "Command", request).answer
    output.record({"answer": answer}) if output.json else output.say(answer)


def _operating(target: str) -> AbstractContextManager["Link"]:
    """A link that commands: the one that was given, or one made beside the state folder for the time of a command."""
    from .coordinator.trust.tickets import operating
    from .proto.link import parse_link

    return nullcontext(parse_link(target)) if target.startswith("farflung:") else operating(target)


@command(app)
def status(
    output: Output,
    target: _Target,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until the run is over.")] = False,
    every: Annotated[float, typer.Option(min=0.2, metavar="S", help="Seconds between two looks.")] = 2.0,
) -> None:
    """Who is in, who does what, why anything waits."""
    from .cli.status import show
    from .cli.watch import watch as keep_looking

    if watch:
        keep_looking(output, lambda: _status_record(target), every)
    else:
        record = _status_record(target)
        output.record(record) if output.json else show(output, record)


def _status_record(target: str) -> dict[str, Any]:
    """The status of a run, from its link or from its state folder."""
    from .cli.linkfile import link_text
    from .coordinator.observe.status import read_status

    target = link_text(target)
    return _ask_status(target) if target.startswith("farflung:") else read_status(target)


def _ask_status(text: str) -> dict[str, Any]:
    """The status as a running coordinator answers it."""
    import json

    from .proto.border import harmless_values
    from .proto.control_pb2 import StatusRequest
    from .proto.link import parse_link

    link = parse_link(text)
    record: dict[str, Any] = json.loads(_ask(link, "Status", StatusRequest(run=link.run, ticket=link.ticket)).status)
    return dict(harmless_values(record))


def _ask(link: "Link", method: str, request: Any) -> Any:
    """A running coordinator's answer; its refusal, or why there is none, as an error."""
    from .proto.errors import Refused
    from .proto.fields import checked

    with _calling(link) as stub:
        reply = checked(getattr(stub, method)(request, timeout=_ANSWER_SECONDS))
    if reply.refused:
        raise Refused.of(reply.refused)
    return reply


@contextmanager
def _calling(link: "Link") -> Iterator[Any]:
    """A running coordinator's methods; that it does not answer is an error."""
    import grpc

    from .node.join import find
    from .proto import rpc
    from .proto.border import printable

    with rpc.blocking_coordinator_channel(link.address, find(link).pinned) as channel:
        try:
            yield rpc.coordinator_stub(channel)
        except grpc.RpcError as error:
            words = printable((isinstance(error, grpc.Call) and error.details()) or str(error))
            message = f"the coordinator at {link.address} did not answer: {words}"
            raise FarflungError(message, "copy the whole link again; is it still running?") from error


@command(app)
def runs(
    output: Output,
    *,
    folder: Annotated[Path, typer.Option("--in", help="The folder that holds the runs' state folders.")] = Path("runs"),
) -> None:
    """The runs whose state folders are on this machine."""
    from .cli.status import show_runs
    from .coordinator.observe.status import read_status
    from .coordinator.store.database import FILE

    records = [read_status(database.parent) for database in sorted(folder.glob(f"*/{FILE}"))]
    for record in records if output.json else ():
        output.record(record)
    if not output.json:
        show_runs(output, records, folder)


@command(app)
def profile(
    output: Output,
    target: _Target,
    *,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="How many steps.")] = 5,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it.", show_default="STATE/trace-TIME.json")
    ] = None,
) -> None:
    """A trace of the next steps across all nodes.

    One file in Chrome's format, for ui.perfetto.dev: what each node did when, by one clock.
    """
    from .cli.linkfile import link_text
    from .cli.profile import collect, default_path, sentences
    from .proto.control_pb2 import ProfileRequest

    target = link_text(target)
    with _operating(target) as link:
        request = ProfileRequest(run=link.run, ticket=link.ticket, steps=steps)
        with _calling(link) as stub:
            found = collect(output, link.run, stub.Profile(request), out or default_path(target))
    output.record(found) if output.json else output.say(sentences(found))


# ---- what comes out ------------------------------------------------------------------------


def _checkpoints_of(place: str, step: int | None) -> AbstractContextManager[Path]:
    """A folder with checkpoints: the one that is named, or what is fetched from an address."""
    if "://" not in place:
        return nullcontext(Path(place))
    from .coordinator.checkpoints.targets import fetched

    return fetched(place, step)


@command(app)
def export(
    output: Output,
    state: Annotated[str, typer.Argument(help="The run's folder, or the address of its checkpoints (s3://...).")],
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    *,
    step: Annotated[int | None, typer.Option(min=0, help="Which checkpoint.", show_default="the newest")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="The whole model where adapters were trained ([model.lora]).")
    ] = False,
) -> None:
    """A checkpoint as a folder that transformers loads."""
    from .cli.next_words import load_line
    from .node.generation.export import beside
    from .node.generation.export import export as write

    with _checkpoints_of(state, step) as found:
        folder, lacks = write(found, out, step=step, merge=merge), beside(found, step)
    if output.json:
        output.record({"path": str(folder), **({"lacks": lacks} if lacks else {})})
    else:
        if lacks:
            output.say(lacks)
        output.say(f"{folder}\nload it: {load_line(folder)}")


@command(app)
def generate(
    output: Output,
    state: Annotated[
        str,
        typer.Argument(
            help="The run's folder, an exported folder, an operator's link, or the address of checkpoints (s3://...)."
        ),
    ],
    prompt: Annotated[str, typer.Argument(help="The text to go on from.")],
    *,
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to add.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the likeliest token.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same text.")] = 1,
    step: Annotated[int | None, typer.Option(min=0, help="Which checkpoint.", show_default="the newest")] = None,
    through: Annotated[
        str | None,
        typer.Option(
            metavar="nodes|model|layers",
            help="The nodes that train now; or a checkpoint, as a whole model or one layer at a time.",
            show_default="nodes where several stages train, layers where a model does not fit the memory",
        ),
    ] = None,
) -> None:
    """Text from a run: of a checkpoint, on this machine's CPU, or of the nodes that train."""
    from .cli.generate import collect, way_of

    way = way_of(through, state, step)
    if way == "nodes":
        from .cli.linkfile import link_text
        from .proto.control_pb2 import GenerateRequest

        with _operating(link_text(state)) as link, _calling(link) as stub:
            request = GenerateRequest(run=link.run, ticket=link.ticket, prompt=prompt, tokens=tokens, seed=seed)
            request.temperature = temperature
            found = collect(output, stub.Generate(request))
        output.record({"prompt": prompt, **found}) if output.json else output.say(prompt + found["text"])
        return
    from .node.generation.generate import generate as write

    with _checkpoints_of(state, step) as folder:
        text = write(folder, prompt, tokens, seed, temperature, step, way, output.note)
    output.record({"prompt": prompt, "text": text}) if output.json else output.say(prompt + text)


# ---- before a run --------------------------------------------------------------------------


@command(app)
def plan(
    output: Output,
    *,
    cluster: Annotated[Path, typer.Option(metavar="FILE", help="Regions, devices, latencies, bandwidths.")],
    job: Annotated[
        Path | None, typer.Option(help="The job to plan for.", show_default="DT-FM's 24 layers of width 2048")
    ] = None,
    stages: Annotated[int | None, typer.Option(min=1, metavar="P")] = None,
    pipelines: Annotated[int | None, typer.Option(min=1, metavar="D")] = None,
    objective: Annotated[str, typer.Option(metavar="step|dtfm|cost", help="What to make small.")] = "step",
    time_limit: Annotated[float, typer.Option(metavar="S", help="Seconds of search.")] = 10.0,
    seed: Annotated[int, typer.Option(metavar="N")] = 0,
    picture: Annotated[Path | None, typer.Option(metavar="OUT.svg", help="Draw the map and the timeline.")] = None,
) -> None:
    """What speed to expect of a cluster, and who would do what."""
    from .cli.plan import run as search
    from .cli.plan import table as rows_of
    from .cli.screen.tables import show_plan

    with output.working(f"looking for a plan, for up to {time_limit:g} s"):
        made = search(cluster, job, stages, pipelines, objective, time_limit, seed, picture)
    output.record(made) if output.json else show_plan(output, rows_of(made), made)


@command(job)
def init(
    output: Output,
    path: Annotated[Path, typer.Argument(help="The job file to write.")] = Path("job.toml"),
    *,
    pretrained: Annotated[Path | None, typer.Option(metavar="FOLDER", help="A model folder to fine-tune.")] = None,
    hardware: Annotated[
        str | None,
        typer.Option(metavar="STATE|LINK|FILE", help="Fit it to the nodes of that run, or to a cluster file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented job file."""
    from .cli.job_init import write

    following = write(path, pretrained, force, _devices(hardware) if hardware else ())
    output.record({"path": str(path)}) if output.json else output.say(f"wrote {path}; next: {following}")


def _devices(source: str) -> list[Mapping[str, Any]]:
    """What the nodes of a run have, or the devices of a cluster file."""
    if Path(source).is_file():
        from .scheduler.network import Network

        return [{"memory_bytes": one.memory_bytes} for one in Network.load(Path(source)).devices]
    nodes = _status_record(source)["nodes"]
    nodes = [node for node in nodes if node["in"]] or nodes  # after its end: all that the run had
    if not nodes:
        raise FarflungError(f"no node has joined the run of {source} yet", "join first, or leave --hardware out")
    return [{"kind": one["kind"], "description": one["device"], "memory_bytes": one["memory_bytes"]} for one in nodes]


@command(app)
def doctor(
    output: Output,
    link: Annotated[
        str | None,
        typer.Argument(
            envvar="FARFLUNG_LINK", help="The link that this machine would join with; @FILE: what FILE holds."
        ),
    ] = None,
    *,
    device: _Device = "auto",
) -> int:
    """What would stop this machine from joining."""
    from .cli.doctor import examine, show
    from .cli.linkfile import link_text

    return show(output, examine(link and link_text(link), device))


def _codecs(output: Output, *, context: typer.Context) -> None:
    """Every codec: bits, traits, where it may be used."""
    if context.invoked_subcommand is None:
        from .cli.codecs import table
        from .cli.screen.tables import show_codecs

        rows = table()
        for row in rows if output.json else ():
            output.record(row)
        if not output.json:
            show_codecs(output, rows)


codecs = new_app()
codecs.callback(invoke_without_command=True)(reported(_codecs))


@command(codecs)
def measure(
    output: Output,
    spec: Annotated[str, typer.Argument(help="name or name:key=value,key=value")],
    *,
    distribution: Annotated[str, typer.Option(metavar="normal|student3|lognormal|hetero")] = "normal",
    tensor: Annotated[str | None, typer.Option(metavar="FILE", help="The tensors of a safetensors file.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Elements of a drawn tensor.")] = 1 << 16,
    workers: Annotated[int, typer.Option(min=1, help="Average over so many senders.")] = 1,
    trials: Annotated[int, typer.Option(min=1)] = 10,
    device: Annotated[str, typer.Option(metavar="cpu|cuda:N")] = "cpu",
) -> None:
    """Bits, error and speed of a codec."""
    from .cli.codecs import measure as measured
    from .cli.screen.tables import show_record

    record = measured(spec, distribution, tensor, size, workers, trials, device)
    output.record(record) if output.json else show_record(output, record)


@app.command(
    "wan",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def wan(context: typer.Context) -> None:
    """An emulated WAN on this machine: up, check, exec, set, cut, restore, run, down."""
    from .deploy.wan.cli import main as obey

    raise typer.Exit(obey(context.args))


app.add_typer(job, name="job")
app.add_typer(codecs, name="codecs")


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with its status."""
    sys.exit(execute(app, sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
