//! [`Detector`]: finds accesses of streams that nothing orders (C. Flanagan, S. Freund, "FastTrack:
//! efficient and precise dynamic race detection", PLDI 2009).
//!
//! Each stream has a vector clock: how much of every stream is known to run before its next operation.
//! An event carries the clock of its record; a wait, and a synchronization of the host, joins it. All
//! threads of the host share one clock: what one of them waited for counts for all.

use crate::backend::Span;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// For each stream, the number of operations that are known to have run.
pub(crate) type Clock = SmallVec<[u64; 8]>;

/// One access of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    stream: usize,
    /// The operation's number on its stream, from 1.
    number: u64,
}

/// Two accesses to the same bytes, at least one of them a write, that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The bytes, of both accesses.
    pub span: Span,
    /// Stream and number of the operation that was enqueued first, and whether it writes.
    pub first: (usize, u64, bool),
    /// Those of the other.
    pub second: (usize, u64, bool),
}

/// The last accesses to a range.
#[derive(Clone, Default)]
struct Cell {
    end: u64,
    write: Option<Stamp>,
    /// The last one of each stream since the write.
    reads: SmallVec<[Stamp; 2]>,
}

#[derive(Default)]
pub(crate) struct Detector {
    host: Clock,
    streams: Vec<Clock>,
    /// By first address.
    cells: BTreeMap<u64, Cell>,
    races: Vec<Race>,
    n_races: u64,
}

/// Races that are kept; more are only counted.
const MAX_RACES: usize = 64;

fn join(clock: &mut Clock, other: &[u64]) {
    if clock.len() < other.len() {
        clock.resize(other.len(), 0);
    }
    for (own, other) in clock.iter_mut().zip(other) {
        *own = (*own).max(*other);
    }
}

impl Detector {
    /// Notes an operation of a stream, which does not start before the host's past.
    pub(crate) fn enqueue(&mut self, stream: usize, accesses: impl Iterator<Item = (Span, bool)>) {
        let clock = clock_of(&mut self.streams, stream);
        join(clock, &self.host);
        if clock.len() <= stream {
            clock.resize(stream + 1, 0);
        }
        clock[stream] += 1;
        let number = clock[stream];
        for (span, writes) in accesses {
            self.access(Stamp { stream, number }, span, writes);
        }
    }

    /// The clock of everything enqueued on a stream.
    pub(crate) fn clock(&mut self, stream: usize) -> Clock {
        clock_of(&mut self.streams, stream).clone()
    }

    /// Later operations of a stream run behind `clock`.
    pub(crate) fn wait(&mut self, stream: usize, clock: &Clock) {
        join(clock_of(&mut self.streams, stream), clock);
    }

    /// The host has waited for `clock`.
    pub(crate) fn wait_host(&mut self, clock: &Clock) {
        join(&mut self.host, clock);
    }

    /// Forgets memory that was freed.
    pub(crate) fn forget(&mut self, span: Span) {
        self.split(span.address.0);
        self.split(span.end().0);
        let inside = self.cells.range(span.address.0..span.end().0);
        let starts: Vec<u64> = inside.map(|(start, _)| *start).collect();
        for start in starts {
            self.cells.remove(&start);
        }
    }

    /// The races that were found, and their number.
    pub(crate) fn races(&self) -> (&[Race], u64) {
        (&self.races, self.n_races)
    }

    /// Makes a cell begin at `at`, if one spans it.
    fn split(&mut self, at: u64) {
        let before = self.cells.range_mut(..at).next_back();
        if let Some((_, cell)) = before
            && cell.end > at
        {
            let rest = cell.clone();
            cell.end = at;
            self.cells.insert(at, rest);
        }
    }

    fn access(&mut self, stamp: Stamp, span: Span, writes: bool) {
        let (start, end) = (span.address.0, span.end().0);
        if start == end {
            return;
        }
        self.split(start);
        self.split(end);
        let clock = &self.streams[stamp.stream];
        let is_before = |s: &Stamp| clock.get(s.stream).is_some_and(|n| *n >= s.number);
        let mut found = None;
        let mut at = start;
        let mut gaps = SmallVec::<[(u64, u64); 2]>::new();
        for (from, cell) in self.cells.range_mut(start..end) {
            if *from > at {
                gaps.push((at, *from));
            }
            at = cell.end;
            let unordered_write = cell.write.filter(|w| !is_before(w)).map(|w| (w, true));
            let read = cell.reads.iter().find(|r| writes && !is_before(r));
            found = found.or(unordered_write.or(read.map(|r| (*r, false))));
            if writes {
                cell.write = Some(stamp);
                cell.reads.clear();
            } else {
                cell.reads.retain(|r| r.stream != stamp.stream);
                cell.reads.push(stamp);
            }
        }
        if at < end {
            gaps.push((at, end));
        }
        if writes {
            // One cell for the whole range.
            let inside: SmallVec<[u64; 4]> =
                self.cells.range(start + 1..end).map(|(s, _)| *s).collect();
            inside.iter().for_each(|s| drop(self.cells.remove(s)));
            gaps = SmallVec::from_slice(&[(start, end)]);
        }
        for (from, end) in gaps {
            let (write, reads) = match writes {
                true => (Some(stamp), SmallVec::new()),
                false => (None, SmallVec::from_slice(&[stamp])),
            };
            self.cells.insert(from, Cell { end, write, reads });
        }
        if let Some((other, wrote)) = found {
            self.n_races += 1;
            if self.races.len() < MAX_RACES {
                self.races.push(Race {
                    span,
                    first: (other.stream, other.number, wrote),
                    second: (stamp.stream, stamp.number, writes),
                });
            }
        }
    }
}

fn clock_of(streams: &mut Vec<Clock>, stream: usize) -> &mut Clock {
    if streams.len() <= stream {
        streams.resize(stream + 1, Clock::new());
    }
    &mut streams[stream]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Address;

    /// Runs lines `STREAM r|w START LEN`, `STREAM > NAME` (record), `STREAM < NAME` (wait) and
    /// `host < NAME`; returns the numbers of the lines with a race.
    fn check(lines: &[&str]) -> Vec<usize> {
        let (mut detector, mut events) = (Detector::default(), BTreeMap::new());
        let mut at = Vec::new();
        for (i, line) in lines.iter().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match (words[0].parse::<usize>(), words[1]) {
                (Ok(stream), ">") => {
                    events.insert(words[2], detector.clock(stream));
                }
                (Ok(stream), "<") => detector.wait(stream, &events[words[2]]),
                (Err(_), "<") => detector.wait_host(&events[words[2]]),
                (Ok(stream), kind) => {
                    let (address, len) = (words[2].parse().unwrap(), words[3].parse().unwrap());
                    let span = Span {
                        address: Address(address),
                        len,
                    };
                    let before = detector.n_races;
                    detector.enqueue(stream, [(span, kind == "w")].into_iter());
                    if detector.n_races > before {
                        at.push(i);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        at
    }

    #[test]
    fn unordered_accesses_are_races() {
        assert!(check(&["0 w 0 8", "0 r 0 8", "0 w 0 8"]).is_empty());
        assert_eq!(check(&["0 w 0 8", "1 r 4 8"]), [1]);
        assert_eq!(check(&["0 r 0 8", "1 r 0 8", "1 w 0 4"]), [2]);
        assert_eq!(check(&["0 w 0 8", "1 w 8 8", "1 r 0 1"]), [2]);
    }

    #[test]
    fn events_and_the_host_order_accesses() {
        assert!(check(&["0 w 0 8", "0 > e", "1 < e", "1 w 0 8"]).is_empty());
        assert_eq!(check(&["0 > e", "0 w 0 8", "1 < e", "1 w 0 8"]), [3]);
        assert_eq!(
            check(&["0 w 0 8", "0 > e", "host < e", "1 w 0 8", "2 w 0 8"]),
            [4]
        );
        let chain = ["0 w 0 8", "0 > a", "1 < a", "1 > b", "2 < b", "2 r 0 8"];
        assert!(check(&chain).is_empty());
    }

    #[test]
    fn ranges_are_kept_apart() {
        let lines = [
            "0 w 0 16", "0 > e", "1 < e", "1 w 4 4", "0 r 0 4", "0 r 8 8", "0 r 7 1",
        ];
        assert_eq!(check(&lines), [6]);
    }
}
