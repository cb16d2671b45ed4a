"""Conversion between protobuf and the membership machine: effects to orders, reports to events."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from ...job.data.sampling import runs_of
from ...proto import control_pb2 as pb
from . import signals as s

MOST_KEPT = 8
"""Most checkpoints beside which a node may report that it keeps something."""
Send = s.SendMeasure | s.SendFlush | s.SendView | s.SendStart | s.SendStop | s.SendNotice | s.SendLeave


def order_of(effect: Send, term: int) -> pb.Order:
    """The order that carries an effect to a node."""
    if isinstance(effect, s.SendMeasure):
        return pb.Order(term=term, measure=pb.Measure(peers=_members(effect.peers)))
    if isinstance(effect, s.SendFlush):
        return pb.Order(term=term, flush=pb.Flush(view=effect.view, why=effect.why))
    if isinstance(effect, s.SendView):
        return pb.Order(term=term, view=view_of(effect.view))
    if isinstance(effect, s.SendStart):
        return pb.Order(term=term, start=pb.Start(view=effect.view))
    if isinstance(effect, s.SendStop):
        return pb.Order(term=term, stop=stop_of(effect))
    if isinstance(effect, s.SendLeave):
        return pb.Order(term=term, leave=pb.Leave(why=effect.why, stays=effect.stays))
    return pb.Order(term=term, notice=pb.Notice(message=effect.why))


def stop_of(effect: s.SendStop) -> pb.Stop:
    """The message that ends a node's part in the run."""
    return pb.Stop(why=effect.why, failed=effect.failed, refused=effect.refused, again=effect.again)


def view_of(view: s.Announcement) -> pb.View:
    """A view in the form that its members get."""
    return pb.View(
        number=view.number,
        plan=view.plan.to_json(),
        members=_members(view.members),
        step=view.position.step,
        cursor=view.position.cursor,
        redo_runs=runs_of(view.position.redo),
        sections=[pb.SectionState(section=one.name, round=one.round, chain=one.chain) for one in view.sections],
        holders=[pb.Holder(layer=layer, nodes=names) for layer, names in enumerate(view.holders)],
        checkpoint=view.checkpoint,
        norm=view.norm,
        why=view.why,
        job=view.job,
        save=view.save,
        shadows=[pb.Shadow(node=one.node, like=one.like, fetch=one.fetch) for one in view.shadows],
        restores=view.restores,
        kept_in=view.kept_in,
        handovers=[
            pb.Handover(giver=one.giver, taker=one.taker, layers=one.layers, ends=one.ends) for one in view.handovers
        ],
    )


def flushed_of(name: str, session: str, report: pb.Flushed) -> s.Flushed:
    """The answer to a flush."""
    sections = tuple(s.Section(one.section, one.round, one.chain) for one in report.sections)
    return s.Flushed(
        name,
        session,
        report.view,
        report.step,
        report.ready_step,
        report.norm,
        sections=sections,
        layers=frozenset(report.layers),
        save=report.save,
        kept=frozenset((one.step, one.view) for one in report.kept[:MOST_KEPT]),
        unsent={
            layer: one for layer, one in zip(report.layers, report.unsent, strict=False) if one >= 0 and isfinite(one)
        },
        moved=report.moved if report.moved >= 0 and isfinite(report.moved) else 0.0,
    )


def fingerprints_of(found: Iterable[pb.Fingerprint]) -> tuple[s.Fingerprint, ...]:
    """Fingerprints of Prepared and Finished."""
    return tuple(s.Fingerprint(one.section, one.round, one.content) for one in found)


def _members(members: Iterable[s.Member]) -> list[pb.Member]:
    return [
        pb.Member(name=one.name, session=one.session, address=one.address, dials_out=one.dials_out) for one in members
    ]
