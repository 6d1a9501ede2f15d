"""One transfer between the pure machines of D and of one or two P, with a network that a test (or chance) drives.

Nothing here is a second implementation of the protocol: it carries out effects, moves messages, and remembers what was
written where. Every `choice` is one possible next event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvferry_runtime.errors import Reason
from kvferry_runtime.layout import KvDtype
from kvferry_runtime.wire.credits import ReceiveCredits, SendCredits
from kvferry_runtime.wire.data import DataHeader
from kvferry_runtime.wire.effects import (
    Acknowledge,
    AskFill,
    Connect,
    Deliver,
    Drop,
    Effect,
    Finished,
    Release,
    Tell,
    Transmit,
)
from kvferry_runtime.wire.messages import (
    Abort,
    Ack,
    AnyMessage,
    Commit,
    Credit,
    Deny,
    Nack,
    Open,
    Reserve,
    Seal,
    SealLayer,
    decode,
    encode,
)
from kvferry_runtime.wire.outgoing import Manifest, Offered, Work
from kvferry_runtime.wire.receiver import IncomingTransfer, Wanted
from kvferry_runtime.wire.retries import GRACE_SECONDS
from kvferry_runtime.wire.sender import OutgoingTransfer

ID = "ab" * 16
DEADLINE = 100.0
TOKEN_BYTES = 32
WINDOW = 3
SLOTS = 4


@dataclass
class Message:
    """DATA under way. good: its payload; readable: its header."""

    header: DataHeader
    good: bool = True
    readable: bool = True


@dataclass
class Session:
    """Between D and one P. What is in flight when it ends is gone."""

    credits: SendCredits = field(default_factory=SendCredits)
    receives: ReceiveCredits = field(default_factory=ReceiveCredits)
    to_d: deque[bytes] = field(default_factory=deque)
    to_p: deque[bytes] = field(default_factory=deque)
    data: dict[int, Message] = field(default_factory=dict)
    up: bool = True

    def grant(self, acks: list[Ack], unread: list[int]) -> None:
        self.receives.post()
        self.to_p.append(encode(Credit(limit=self.receives.limit, acks=acks, unread=unread)))


class Prefill:
    """One P: its machine, its slots, its agent."""

    def __init__(self, world: World, name: str, layers: range, tokens: int, step: int, retries: int) -> None:
        self.world = world
        self.name = name
        self.machine = OutgoingTransfer(Offered(ID, layers, tokens, 0, True, DEADLINE, retries))
        self.places = [
            (layer, start, min(start + step, tokens)) for layer in layers for start in range(0, tokens, step)
        ]
        holding = len(self.places) // len(layers)
        self.manifest = Manifest(len(self.places), tuple(SealLayer(layer, tokens, holding) for layer in layers), 5)
        self.announced = 0
        self.sealed = False
        self.free = set(range(SLOTS))
        self.lent: dict[int, AskFill] = {}
        self.contents: dict[int, DataHeader] = {}
        self.sending: list[int] = []
        self.session: Session | None = None
        self.reports: list[Finished] = []
        self.lost_engine = False

    def header(self, ask: AskFill) -> DataHeader:
        layer, start, stop = self.places[ask.sequence]
        size = (stop - start) * TOKEN_BYTES
        return DataHeader(
            transfer_id=ID, generation=ask.generation, sequence=ask.sequence, layer=layer, layer_count=1, parts=2,
            codec=0, token_start=start, token_stop=stop, head_stop=1, head_dim=8, dtype=KvDtype.BF16, scale_scope=0,
            raw_bytes=size, wire_bytes=size, digest=hash((self.name, ask.sequence)) & 0xFFFF,
        )  # fmt: skip

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case AskFill():
                    assert effect.slot not in self.lent
                    self.lent[effect.slot] = effect
                case Tell():
                    if self.session is not None and self.session.up:
                        self.session.to_d.append(encode(effect.message))
                case Transmit():
                    assert effect.slot not in self.sending and effect.slot not in self.free
                    self.sending.append(effect.slot)
                    session = self.session
                    if session is not None and session.up:
                        assert effect.number < session.receives.limit, "sent without a posted receive"
                        session.data[effect.number] = Message(self.contents[effect.slot])
                case Release():
                    assert effect.slot not in self.free, "released twice"
                    assert effect.slot not in self.sending, "released while the network reads it"
                    assert effect.slot not in self.lent, "released while the agent writes it"
                    self.free.add(effect.slot)
                case Finished():
                    self.reports.append(effect)

    def announce(self) -> None:
        sizes = [(stop - start) * TOKEN_BYTES for _, start, stop in self.places[self.announced : self.announced + 2]]
        first, self.announced = self.announced, self.announced + len(sizes)
        self.run(self.machine.announced(first, sizes, self.world.now))

    def seal(self) -> None:
        self.sealed = True
        self.run(self.machine.sealed(self.manifest, self.world.now))

    def step(self) -> None:
        match self.machine.work():
            case Work.RESEND:
                self.run(self.machine.resend())
            case Work.FILL if self.free:
                self.run(self.machine.fill(self.free.pop()))

    def fill(self, slot: int, well: bool = True) -> None:
        ask = self.lent.pop(slot)
        header = self.contents[slot] = self.header(ask)
        sizes = (header.raw_bytes, header.wire_bytes) if well else (0, 0)
        self.run(self.machine.filled(slot, ask.sequence, *sizes, header.digest, self.world.now))

    def complete(self, slot: int) -> None:
        self.sending.remove(slot)
        self.run(self.machine.completed(slot))

    def lose_engine(self) -> None:
        self.lost_engine = True
        self.lent.clear()
        self.run(self.machine.agent_lost("killed", self.world.now))

    def take(self, message: AnyMessage, session: Session) -> None:
        machine, now = self.machine, self.world.now
        if isinstance(message, Reserve):
            before = self.session
            self.session = session
            self.run(machine.reserve(self.name, message, session.credits, True, "none"))
            if not machine.active:
                self.session = before
            return
        if isinstance(message, Credit):
            session.credits.grant(message.limit)
            for ack in message.acks:
                self.run(machine.acknowledged(ack.generation, ack.sequence))
            for number in message.unread:
                self.run(machine.unread(number, now))
            return
        match message:
            case Commit():
                self.run(machine.committed(message, now))
            case Nack():
                self.run(machine.nacked(message, now))
            case Abort():
                self.run(machine.aborted(message, now))


class World:
    """stages: layers of each P. D holds all of them."""

    def __init__(self, stages: list[range], tokens: int = 6, step: int = 3, retries: int = 0) -> None:
        self.now = 0.0
        layers = range(stages[0].start, stages[-1].stop)
        self.tokens = tokens
        self.prefills = {
            f"p{number}": Prefill(self, f"p{number}", stage, tokens, step, retries)
            for number, stage in enumerate(stages)
        }
        self.machine = IncomingTransfer(
            Wanted(ID, tuple(self.prefills), layers, 0, tokens, ("none",), DEADLINE, retries)
        )
        self.sessions: dict[str, Session] = {}
        self.connecting: list[str] = []
        self.lent: list[tuple[str, Session, Message]] = []
        self.memory: dict[tuple[int, int], tuple[str, int]] = {}
        self.reports: list[Finished] = []
        self.lost_engine = False
        self.run(self.machine.start())

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Connect():
                    self.connecting.append(effect.peer)
                case Tell():
                    session = self.sessions.get(effect.peer)
                    if session is not None and session.up:
                        session.to_p.append(encode(effect.message))
                case Acknowledge():
                    session = self.sessions.get(effect.peer)
                    if session is not None and session.up:
                        credit = Credit(limit=session.receives.limit, acks=[effect.ack], unread=[])
                        session.to_p.append(encode(credit))
                case Finished():
                    self.reports.append(effect)
                    assert effect.reason is not None or not self.lent, "loaded while the agent still writes"
                    if effect.reason is None:
                        self.check_memory()

    def check_memory(self) -> None:
        """Everything that was promised lies where it belongs, and comes from whoever holds that layer."""
        for name, prefill in self.prefills.items():
            for sequence, (layer, start, stop) in enumerate(prefill.places):
                for token in range(start, stop):
                    assert self.memory[layer, token] == (name, sequence)

    def connect(self, peer: str, reachable: bool = True) -> None:
        self.connecting.remove(peer)
        if not reachable:
            self.run(self.machine.peer_lost(peer, Reason.PEER_UNREACHABLE, "refused", self.now))
            return
        session = self.sessions.get(peer)
        if session is None or not session.up:
            session = self.sessions[peer] = Session()
            for _ in range(WINDOW):
                session.grant([], [])
        self.run(self.machine.connected(peer, self.now))

    def to_p(self, peer: str, session: Session) -> None:
        self.prefills[peer].take(decode(session.to_p.popleft()), session)

    def to_d(self, peer: str, session: Session) -> None:
        message = decode(session.to_d.popleft())
        match message:
            case Open():
                self.run(self.machine.opened(peer, message, self.now))
            case Deny():
                self.run(self.machine.denied(peer, message, self.now))
            case Seal():
                self.run(self.machine.sealed(peer, message, self.now))
            case Abort():
                self.run(self.machine.aborted(peer, message, self.now))

    def arrive(self, peer: str, session: Session, number: int) -> None:
        message = session.data.pop(number)
        if not message.readable:
            session.grant([], [number])
        else:
            verdict, *effects = self.machine.arrived(peer, message.header, self.now)
            match verdict:
                case Deliver():
                    self.lent.append((peer, session, message))
                case Drop():
                    session.grant([], [])
            self.run(effects)

    def consume(self, index: int) -> None:
        peer, session, message = self.lent.pop(index)
        header = message.header
        if message.good and not self.machine.over:
            for token in range(header.token_start, header.token_stop):
                self.memory[header.layer, token] = (peer, header.sequence)
        if session.up:
            session.grant([], [])
        self.run(self.machine.consumed(peer, header.generation, header.sequence, message.good, self.now))

    def lose_session(self, peer: str, session: Session) -> None:
        session.up = False
        session.data.clear()
        self.run(self.machine.peer_lost(peer, Reason.PEER_LOST, "reset", self.now))
        if self.prefills[peer].session is session:
            self.prefills[peer].run(self.prefills[peer].machine.peer_lost(Reason.PEER_LOST, "reset", self.now))

    def lose_engine(self) -> None:
        self.lost_engine = True
        for _, session, _ in self.lent:
            if session.up:
                session.grant([], [])
        self.lent.clear()
        self.run(self.machine.agent_lost("killed", self.now))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.run(self.machine.tick(self.now, starved=False))
        for prefill in self.prefills.values():
            prefill.run(prefill.machine.tick(self.now))

    # ---- what may happen next ----

    def progress(self) -> list[tuple[str, Callable[[], None]]]:
        """Everything that happens when nothing goes wrong."""
        found: list[tuple[str, Callable[[], None]]] = [
            (f"connect {peer}", lambda peer=peer: self.connect(peer)) for peer in self.connecting
        ]
        for name, p in self.prefills.items():
            if not p.lost_engine and p.announced < len(p.places):
                found.append((f"{name} announces", p.announce))
            elif not p.lost_engine and not p.sealed:
                found.append((f"{name} seals", p.seal))
            if p.machine.work() is Work.RESEND or (p.machine.work() is Work.FILL and p.free):
                found.append((f"{name} works", p.step))
            found += [(f"{name} fills {slot}", lambda p=p, slot=slot: p.fill(slot)) for slot in p.lent]
            found += [(f"{name} sent {slot}", lambda p=p, slot=slot: p.complete(slot)) for slot in p.sending]
        for name, s in self.sessions.items():
            if s.up and s.to_p:
                found.append((f"to {name}", lambda name=name, s=s: self.to_p(name, s)))
            if s.up and s.to_d:
                found.append((f"from {name}", lambda name=name, s=s: self.to_d(name, s)))
            found += [
                (f"arrive {name} {number}", lambda name=name, s=s, number=number: self.arrive(name, s, number))
                for number in s.data
            ]
        found += [(f"consume {index}", lambda index=index: self.consume(index)) for index in range(len(self.lent))]
        return found

    def trouble(self) -> list[tuple[str, Callable[[], None]]]:
        """Everything else."""
        found: list[tuple[str, Callable[[], None]]] = [
            ("time", lambda: self.tick(2.5)),
            ("much time", lambda: self.tick(60.0)),
            ("decode cancels", lambda: self.run(self.machine.cancelled(Reason.CANCELLED, "gone", self.now))),
            ("decode engine dies", self.lose_engine),
        ]
        found += [(f"refused {peer}", lambda peer=peer: self.connect(peer, False)) for peer in self.connecting]
        for name, p in self.prefills.items():
            found.append(
                (f"{name} cancels", lambda p=p: p.run(p.machine.cancelled(Reason.CANCELLED, "gone", self.now)))
            )
            found.append((f"{name} engine dies", p.lose_engine))
            found += [(f"{name} cannot fill {slot}", lambda p=p, slot=slot: p.fill(slot, False)) for slot in p.lent]
        for name, s in self.sessions.items():
            if s.up:
                found.append((f"reset {name}", lambda name=name, s=s: self.lose_session(name, s)))
        return found + self.damage()

    def damage(self) -> list[tuple[str, Callable[[], None]]]:
        """What the network may do to single messages."""
        found: list[tuple[str, Callable[[], None]]] = []
        for name, s in self.sessions.items():
            for number, message in s.data.items():
                found.append((f"lose {name} {number}", lambda s=s, number=number: s.data.pop(number) and None))
                found.append((f"spoil {name} {number}", lambda m=message: setattr(m, "good", False)))
                found.append((f"spoil header {name} {number}", lambda m=message: setattr(m, "readable", False)))
        return found

    def settle(self, seconds: float = 1.0) -> None:
        """Let everything happen that happens by itself, then see the deadline pass."""
        for _ in range(10_000):
            steps = self.progress()
            if not steps:
                break
            steps[0][1]()
        if not self.over:
            self.tick(seconds)

    @property
    def over(self) -> bool:
        return self.machine.drained and all(p.machine.drained for p in self.prefills.values())

    def finish(self) -> None:
        """Until everything is over, or for longer than anything may take."""
        self.settle()
        while not self.over and self.now < 3 * DEADLINE:
            self.settle(GRACE_SECONDS)

    def check_end(self) -> None:
        """One report each, no slot lost, and nobody says committed unless everything is in place."""
        assert self.over, [p.machine.state for p in self.prefills.values()] + [self.machine.state]
        assert len(self.reports) == 1, self.reports
        for prefill in self.prefills.values():
            assert len(prefill.reports) == 1, prefill.reports
            assert prefill.free == set(range(SLOTS)) and not prefill.lent and not prefill.sending
            if prefill.reports[0].reason is None:
                assert self.reports[0].reason is None
