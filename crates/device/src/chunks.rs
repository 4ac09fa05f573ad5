//! [`Chunks`]: the chunks that an allocator divides its regions into, and which of them are free
//! (TensorFlow: `framework/bfc_allocator.cc`).

use crate::backend::{Address, Span};
use crate::stream::{Event, Stream};
use ferroflow_base::Result;
use std::collections::BTreeSet;

/// All lengths are multiples of it.
pub(crate) const GRANULE: usize = 256;

/// What may still use a free chunk: everything enqueued on a stream up to an event.
#[derive(Clone)]
pub(crate) struct Use {
    pub(crate) stream: Stream,
    /// `None` if no other stream existed; a later event of the stream will do.
    pub(crate) event: Option<Event>,
    /// Later uses of a stream have larger numbers.
    pub(crate) number: u64,
}

impl Use {
    /// The event, or a later one of the stream.
    pub(crate) fn event(&self) -> Result<Event> {
        match &self.event {
            Some(event) => Ok(event.clone()),
            None => self.stream.mark(),
        }
    }
}

enum State {
    Free(Vec<Use>),
    /// The holder of the chunk, for messages.
    Held(Box<str>),
    /// Lost: its uses cannot be waited for.
    Lost,
}

struct Chunk {
    span: Span,
    prev: Option<usize>,
    next: Option<usize>,
    state: State,
}

/// Chunks of all regions. Free neighbours are joined: at once, or when nothing uses them any more.
pub(crate) struct Chunks {
    chunks: Vec<Chunk>,
    /// Positions in `chunks` that stand for nothing.
    vacant: Vec<usize>,
    free: BTreeSet<(usize, Address, usize)>,
    /// Whether chunks that a stream still uses are joined with others, which then are in use, too.
    joins_used: bool,
}

impl Chunks {
    pub(crate) fn new(joins_used: bool) -> Chunks {
        Chunks {
            chunks: Vec::new(),
            vacant: Vec::new(),
            free: BTreeSet::new(),
            joins_used,
        }
    }

    /// Adds a region, as one free chunk.
    pub(crate) fn add_region(&mut self, span: Span) -> usize {
        let chunk = Chunk {
            span,
            prev: None,
            next: None,
            state: State::Free(Vec::new()),
        };
        let at = self.insert(chunk);
        self.free.insert((span.len, span.address, at));
        at
    }

    fn insert(&mut self, chunk: Chunk) -> usize {
        match self.vacant.pop() {
            Some(at) => {
                self.chunks[at] = chunk;
                at
            }
            None => {
                self.chunks.push(chunk);
                self.chunks.len() - 1
            }
        }
    }

    /// Free chunks of at least `len` bytes, the smallest first.
    pub(crate) fn free_of(&self, len: usize) -> impl Iterator<Item = usize> {
        let fits = self.free.range((len, Address(0), 0)..);
        fits.map(|(_, _, at)| *at)
    }

    /// Returns the smallest free chunk of at least `len` bytes that nothing uses, if any, where such chunks stay apart from
    /// others.
    pub(crate) fn idle_of(&self, len: usize) -> Option<usize> {
        let is_idle = |at: &usize| {
            let state = &self.chunks[*at].state;
            matches!(state, State::Free(uses) if uses.is_empty())
        };
        match self.joins_used {
            true => None,
            false => self.free_of(len).find(is_idle),
        }
    }

    /// Forgets the uses that are over, and joins chunks that have no others.
    pub(crate) fn settle(&mut self, is_over: impl Fn(&Use) -> bool) {
        if self.joins_used {
            return;
        }
        for at in self.all_free() {
            let Some(uses) = self.uses_mut(at).filter(|uses| !uses.is_empty()) else {
                continue;
            };
            uses.retain(|u| !is_over(u));
            self.join(at, false);
        }
    }

    /// Joins all free neighbours.
    pub(crate) fn join_all(&mut self) {
        if self.joins_used {
            return;
        }
        for at in self.all_free() {
            if self.uses_mut(at).is_some() {
                self.join(at, true);
            }
        }
    }

    fn all_free(&self) -> Vec<usize> {
        self.free.iter().map(|(_, _, at)| *at).collect()
    }

    /// The uses of a free chunk.
    pub(crate) fn uses_mut(&mut self, at: usize) -> Option<&mut Vec<Use>> {
        match &mut self.chunks.get_mut(at)?.state {
            State::Free(uses) => Some(uses),
            _ => None,
        }
    }

    /// Takes the first `len` bytes of a free chunk for `holder`. The rest stays free, with the same uses.
    pub(crate) fn take(&mut self, at: usize, len: usize, holder: &str) -> Span {
        let span = self.chunks[at].span;
        self.free.remove(&(span.len, span.address, at));
        let state = State::Held(holder.into());
        let State::Free(uses) = std::mem::replace(&mut self.chunks[at].state, state) else {
            return span;
        };
        if span.len - len < GRANULE {
            return span;
        }
        let rest = Span {
            address: span.address.offset(len),
            len: span.len - len,
        };
        let next = self.chunks[at].next;
        let new = self.insert(Chunk {
            span: rest,
            prev: Some(at),
            next,
            state: State::Free(uses),
        });
        self.free.insert((rest.len, rest.address, new));
        if let Some(next) = next {
            self.chunks[next].prev = Some(new);
        }
        let chunk = &mut self.chunks[at];
        chunk.next = Some(new);
        chunk.span.len = len;
        chunk.span
    }

    /// Frees a chunk. Without `uses` it is never used again.
    pub(crate) fn release(&mut self, at: usize, uses: Option<Vec<Use>>) {
        let Some(uses) = uses else {
            self.chunks[at].state = State::Lost;
            return;
        };
        self.list(at, uses);
        self.join(at, self.joins_used);
    }

    /// Joins a free chunk with free neighbours: those that nothing uses, or with `used` all.
    fn join(&mut self, at: usize, used: bool) {
        if let Some(next) = self.chunks[at].next {
            self.join_pair(at, next, used);
        }
        if let Some(prev) = self.chunks[at].prev {
            self.join_pair(prev, at, used);
        }
    }

    fn join_pair(&mut self, at: usize, next: usize, used: bool) {
        let joins = |c: &Chunk| matches!(&c.state, State::Free(uses) if used || uses.is_empty());
        if joins(&self.chunks[at])
            && joins(&self.chunks[next])
            && let (Some(mut uses), Some(others)) = (self.unlist(at), self.unlist(next))
        {
            join_uses(&mut uses, others);
            self.absorb(at, next);
            self.list(at, uses);
        }
    }

    /// Makes a chunk a free one.
    fn list(&mut self, at: usize, uses: Vec<Use>) {
        let chunk = &mut self.chunks[at];
        chunk.state = State::Free(uses);
        self.free.insert((chunk.span.len, chunk.span.address, at));
    }

    /// Takes a free chunk's uses, and the chunk out of the list of free ones.
    fn unlist(&mut self, at: usize) -> Option<Vec<Use>> {
        let chunk = &mut self.chunks[at];
        let State::Free(uses) = &mut chunk.state else {
            return None;
        };
        let uses = std::mem::take(uses);
        self.free.remove(&(chunk.span.len, chunk.span.address, at));
        Some(uses)
    }

    /// Adds chunk `next` to the one in front of it.
    fn absorb(&mut self, at: usize, next: usize) {
        let (len, after) = (self.chunks[next].span.len, self.chunks[next].next);
        self.chunks[at].span.len += len;
        self.chunks[at].next = after;
        if let Some(after) = after {
            self.chunks[after].prev = Some(at);
        }
        self.vacate(next);
    }

    fn vacate(&mut self, at: usize) {
        let chunk = &mut self.chunks[at];
        (chunk.prev, chunk.next, chunk.state) = (None, None, State::Lost);
        chunk.span.len = 0;
        self.vacant.push(at);
    }

    /// Removes the regions that are one free chunk, and returns them with their uses.
    pub(crate) fn take_free_regions(&mut self) -> Vec<(Span, Vec<Use>)> {
        self.join_all();
        let mut regions = Vec::new();
        for at in self.all_free() {
            let chunk = &self.chunks[at];
            if chunk.prev.is_none() && chunk.next.is_none() {
                let span = chunk.span;
                let uses = self.unlist(at).unwrap_or_default();
                self.vacate(at);
                regions.push((span, uses));
            }
        }
        regions
    }

    /// Bytes that each holder has, the most first.
    pub(crate) fn holders(&self) -> Vec<(&str, usize)> {
        let mut by_name = std::collections::BTreeMap::<&str, usize>::new();
        for chunk in &self.chunks {
            if let State::Held(holder) = &chunk.state {
                *by_name.entry(holder).or_default() += chunk.span.len;
            }
        }
        let mut holders: Vec<_> = by_name.into_iter().collect();
        holders.sort_unstable_by_key(|(name, bytes)| (std::cmp::Reverse(*bytes), *name));
        holders
    }

    /// The largest free chunk.
    pub(crate) fn largest_free(&self) -> usize {
        self.free.last().map_or(0, |(len, _, _)| *len)
    }
}

/// Of two uses of a stream the later one counts.
fn join_uses(uses: &mut Vec<Use>, others: Vec<Use>) {
    for other in others {
        match uses.iter_mut().find(|u| u.stream == other.stream) {
            Some(own) if own.number < other.number => *own = other,
            Some(_) => {}
            None => uses.push(other),
        }
    }
}
