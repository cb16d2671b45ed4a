"""How long a burst that measures a link lasts, and which bandwidth it found. Pure: acknowledgements and times in.

A new connection starts slowly: TCP sends about 15 kB in the first round trip and doubles that in each of the next.
Filling 100 Mbit/s takes 3 s at a round trip of 300 ms, and 0.1 s at 10 ms. So a burst ends when its rate has stopped
growing, not by the clock alone, and only the messages that arrived while the link was full count.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

MESSAGE = 64 << 10
"""Bytes of one message: small enough for a link of 0.2 Mbit/s to deliver some in time."""
FIRST_WINDOW, IN_FLIGHT = 2, 1024
"""Messages that may be unacknowledged, at first and at most. At most 64 MiB, which is more than the bandwidth-delay
product of 1 Gbit/s and 300 ms."""
PERIOD_S, PERIOD_MESSAGES = 0.05, 4
"""A rate is measured over at least a round trip, this many seconds and this many messages: acknowledgements come in
batches."""
GROWS = 1.2
"""Factor by which a period must exceed the fastest one so far to count as faster."""
STILL = 3
"""Periods in a row without a faster one that end a burst."""
FULL = 0.8
"""The link counts as full from the first two periods that reached this fraction of the second-fastest pair's rate."""
FEWEST = 8
"""Messages that must have arrived before a burst may end early: the rate of fewer tells the machine's load, not the
link's bandwidth."""
SHORTEST_S = 0.3
"""Seconds that a burst lasts at least, unless its byte limit ends it: one busy moment of the machine must not
decide."""
LONGEST_S, LONGEST_TRIPS = 2.0, 18
"""Seconds plus round trips after which a burst ends even if its rate still grows."""
STALLED = 0.5
"""A period whose rate is below this fraction of the reference rate waited for a retransmitted packet; the messages that
it lacks arrive in the next period."""
LONG_S, UNDISTURBED = 0.1, 0.95
"""Seconds that a period must last for its own rate to count, and the fraction of the fastest such rate that is used:
of many periods, the fastest is too fast by chance."""
MOST = 12
"""A burst whose rate still grows may send this many times its limit."""


@dataclass
class Burst:
    """One burst. Times are seconds by one clock; ``trip``: the link's shortest round trip.

    While fewer than FEWEST messages have arrived, it ends after ``patience`` seconds or ``limit`` bytes; else it ends
    when its rate has stopped growing and it has lasted SHORTEST_S or sent ``limit`` bytes.
    """

    begin: float
    trip: float
    patience: float
    limit: int
    sent: int = 0
    there: int = 0
    """Messages acknowledged."""
    ends: list[tuple[float, int]] = field(default_factory=list)
    """(when, messages there by then): the first acknowledgement, and the end of each period since."""
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _best: float = 0.0
    _still: int = 0

    def window(self, now: float) -> int:
        """Messages that may be in flight: about twice as many after each round trip while the rate grows, and in the
        end as many as arrive in 2.7 round trips, so that a slow link's queue stays short. Arrivals are counted over two
        round trips, because a lost packet delays all messages for one, and the next brings twice as many."""
        while self._recent and self._recent[0][0] <= now - 2 * max(self.trip, PERIOD_S):
            self._recent.popleft()
        return min(FIRST_WINDOW + 4 * sum(count for _, count in self._recent) // 3, IN_FLIGHT)

    def may_send(self, now: float) -> bool:
        """Whether one more message may go now."""
        return self.sent - self.there < self.window(now) and not self.over(now)

    def acknowledge(self, when: float, count: int) -> None:
        """``count`` messages have arrived; ``when`` never decreases."""
        self.there += count
        self._recent.append((when, count))
        if not self.ends:
            self.ends.append((when, self.there))
            return
        seconds, messages = when - self.ends[-1][0], self.there - self.ends[-1][1]
        if seconds < max(self.trip, PERIOD_S) or messages < PERIOD_MESSAGES:
            return
        self.ends.append((when, self.there))
        if messages / seconds > GROWS * self._best:
            self._best, self._still = messages / seconds, 0
        else:
            self._still += 1

    def over(self, now: float) -> bool:
        """Whether the burst has ended: no more messages are sent."""
        seconds, size = now - self.begin, self.sent * MESSAGE
        if self.there < FEWEST:
            return seconds >= self.patience or size >= self.limit
        if self._still >= STILL:
            return seconds >= SHORTEST_S or size >= self.limit
        return seconds >= LONGEST_S + LONGEST_TRIPS * self.trip or size >= MOST * self.limit

    def bandwidth(self) -> float:
        """Bits per second of payload while the link was full; 0 if nothing arrived."""
        if not self.ends:
            return 0.0
        last = self._recent[-1][0] if self._recent else self.ends[-1][0]
        if len(self.ends) == 1:  # everything came in less than a period
            (began, before), messages = self.ends[0], self.there
            if last > began and messages - before >= PERIOD_MESSAGES:
                return 8.0 * MESSAGE * (messages - before) / (last - began)
            return 8.0 * MESSAGE * messages / max(last - self.begin, 1e-9)
        apart = min(2, len(self.ends) - 1)  # two periods: a stall by a lost packet, and the messages it delayed
        pairs = [self._rate(at, at + apart) for at in range(len(self.ends) - apart)]
        full = FULL * sorted(pairs)[-2 if len(pairs) > 2 else -1]
        first = next(at for at, rate in enumerate(pairs) if rate >= full)
        stop = len(self.ends) - 1
        if stop - first > 2 and self._rate(stop - 1, stop) < STALLED * full:
            stop -= 1
        return 8.0 * MESSAGE * max(self._rate(first, stop), UNDISTURBED * self._undisturbed())

    def _undisturbed(self) -> float:
        """Messages per second of the fastest period with no lost packet before it; 0 where no period is long enough.

        TCP's slow start ends by overflowing the link's queue; with long round trips TCP then needs seconds to recover.
        The rate just before the first loss was the link's whole bandwidth.
        """
        fastest = quiet = 0.0
        since = STILL  # periods since one that stalled
        for at, (before, after) in enumerate(pairwise(self.ends)):
            rate = self._rate(at, at + 1)
            since = 0 if rate < STALLED * fastest else since + 1
            if since > 2 and after[0] - before[0] >= LONG_S and after[1] - before[1] >= FEWEST:
                quiet = max(quiet, rate)
            fastest = max(fastest, rate)
        return quiet

    def _rate(self, first: int, stop: int) -> float:
        """Messages a second between the ends of two periods."""
        (began, before), (end, there) = self.ends[first], self.ends[stop]
        return (there - before) / (end - began)
