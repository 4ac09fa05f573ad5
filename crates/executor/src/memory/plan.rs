//! The plan of a step's memory, made from what a step allocated.

use super::offsets::{Lifetime, assign, assign_apart, most_alive};
use super::order::Order;
use ferroflow_program::{NodeIdx, Plan};
use ferroflow_tensor::{Arena, BlockPlace, DType, LoggedUse, Shape};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How often the arena for the recorded order of nodes may fit into the one for any order.
const MAX_TIMES: usize = 2;
/// Most blocks of a plan; the time to make one is quadratic in them. The smallest blocks stay on the heap.
const MAX_BLOCKS: usize = 1024;

/// What an executor knows about the memory of its steps with arguments of one set of shapes.
#[derive(Clone, Debug, Default)]
pub struct MemoryUse {
    /// The arguments.
    pub args: Vec<(DType, Shape)>,
    /// The bytes of a step's arena.
    pub arena_bytes: usize,
    /// Whether places hold for any order in which nodes may run, not for the recorded one alone.
    pub in_any_order: bool,
    /// The most bytes of planned blocks that are in use at once; an arena cannot be smaller.
    pub least_bytes: usize,
    /// The moment when that is.
    pub peak: u32,
    /// The blocks of at least [`BlockPlace::MIN_BYTES`], in the order in which the first step allocated them.
    pub blocks: Vec<BlockUse>,
    /// Outputs of that size that are in an input's block.
    pub shared: Vec<SharedOutput>,
    /// Steps that had an arena.
    pub steps: u64,
    /// Blocks of those steps that were not as planned, and so on the heap.
    pub misses: u64,
}

/// A block of memory of a step.
#[derive(Clone, Debug)]
pub struct BlockUse {
    /// The name and the op of the node that allocates it.
    pub node: (String, String),
    /// Its bytes.
    pub bytes: usize,
    /// Where it is in the arena; on the heap if it outlives the step, as fetches do.
    pub offset: Option<usize>,
    /// The moment when it is allocated.
    pub from: u32,
    /// The moment when it is freed.
    pub to: Option<u32>,
}

/// An output without memory of its own.
#[derive(Clone, Debug)]
pub struct SharedOutput {
    /// The name and the op of its node.
    pub node: (String, String),
    /// Its bytes.
    pub bytes: usize,
}

/// What a step recorded.
pub(crate) struct Record {
    pub(crate) uses: Vec<LoggedUse>,
    /// Which nodes read which blocks.
    pub(crate) readers: Vec<(usize, NodeIdx)>,
    /// Outputs that are in the block of an input.
    pub(crate) shared: Vec<(NodeIdx, usize)>,
    /// Whether steps run nodes on several threads, in another order each time.
    pub(crate) is_concurrent: bool,
}

/// Steps before a plan is judged.
const MIN_STEPS: u64 = 16;

/// Where the blocks of a step are.
#[derive(Default)]
pub(crate) struct MemoryPlan {
    pub(crate) bytes: usize,
    /// For each node of the root frame its first place, and the end of the last one's.
    first: Vec<u32>,
    places: Vec<BlockPlace>,
    uses: Vec<LoggedUse>,
    offsets: Vec<Option<usize>>,
    /// Outputs that are in the block of an input.
    shared: Vec<(NodeIdx, usize)>,
    pub(crate) steps: AtomicU64,
    pub(crate) misses: AtomicU64,
    is_any_order: bool,
    /// The bytes of blocks with places, and of those of them that are on the heap after all.
    placed: usize,
    disabled: AtomicUsize,
}

impl MemoryPlan {
    /// The plan for steps that allocate as a recorded one did.
    pub(crate) fn new(plan: &Plan, record: Record) -> MemoryPlan {
        let Record { uses, shared, .. } = record;
        let mut planned: Vec<usize> = (0..uses.len()).filter(|&i| uses[i].to.is_some()).collect();
        if planned.len() > MAX_BLOCKS {
            planned.sort_by_key(|&i| Reverse(uses[i].len));
            planned.truncate(MAX_BLOCKS);
        }
        let blocks = lifetimes(planned.iter().map(|&i| &uses[i]));
        let (mut placed, mut bytes) = assign(&blocks);
        let mut is_any_order = false;
        if record.is_concurrent && !planned.is_empty() {
            let of_blocks: Vec<&LoggedUse> = planned.iter().map(|&i| &uses[i]).collect();
            let numbers: HashMap<usize, usize> = planned.iter().copied().zip(0..).collect();
            let readers = record.readers.iter();
            let readers = readers.filter_map(|(block, by)| Some((*numbers.get(block)?, *by)));
            let in_any_order = Order::new(plan, &of_blocks, readers)
                .map(|order| assign_apart(&blocks, |a, b| order.are_apart(&of_blocks, a, b)));
            // Not all that may be in use at once is: with few threads, the order is much like the recorded one, and what is
            // not as planned is on the heap.
            if let Some((offsets, most)) = in_any_order
                && most <= bytes * MAX_TIMES
            {
                (placed, bytes, is_any_order) = (offsets, most, true);
            }
        }
        let mut offsets = vec![None; uses.len()];
        for (i, offset) in planned.into_iter().zip(placed) {
            offsets[i] = Some(offset);
        }
        let mut by_node: Vec<usize> = (0..uses.len()).collect();
        by_node.sort_by_key(|&i| (uses[i].owner, uses[i].nth));
        let (mut first, mut places) = (Vec::new(), Vec::new());
        if bytes > 0 {
            first.resize(plan.root().nodes().len() + 1, 0);
        }
        for of_node in by_node.chunk_by(|&a, &b| uses[a].owner == uses[b].owner) {
            if of_node.iter().all(|&i| offsets[i].is_none()) {
                continue;
            }
            for &i in of_node {
                places.push(BlockPlace::new(
                    places.len() as u32,
                    uses[i].len,
                    offsets[i],
                ));
            }
            first[uses[of_node[0]].owner as usize + 1] = places.len() as u32;
        }
        for i in 1..first.len() {
            first[i] = first[i].max(first[i - 1]);
        }
        MemoryPlan {
            bytes,
            first,
            places,
            uses,
            offsets,
            shared,
            is_any_order,
            placed: blocks.iter().map(|b| b.len).sum(),
            ..MemoryPlan::default()
        }
    }

    /// Whether steps are so different from the recorded one that another plan may serve them better.
    pub(crate) fn is_useless(&self) -> bool {
        let steps = self.steps.load(Ordering::Relaxed);
        let misses = self.misses.load(Ordering::Relaxed);
        let n_placed = self.offsets.iter().flatten().count() as u64;
        let disabled = self.disabled.load(Ordering::Relaxed);
        steps >= MIN_STEPS && (misses * 4 > steps * n_placed || disabled * 2 > self.placed)
    }

    /// Whether no block is in an arena.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The places of a node's blocks.
    #[inline]
    pub(crate) fn places_of(&self, node: NodeIdx) -> &[BlockPlace] {
        let at = node.index();
        match (self.first.get(at), self.first.get(at + 1)) {
            (Some(&first), Some(&end)) => &self.places[first as usize..end as usize],
            _ => &[],
        }
    }

    /// Leaves the blocks that still use the arena of an ended step to the heap from now on; returns whether none does.
    pub(crate) fn disable_left(&self, arena: &Arena) -> bool {
        let left = arena.in_use();
        let places = left
            .iter()
            .filter_map(|place| self.places.get(*place as usize));
        let bytes = places.map(BlockPlace::disable).sum();
        self.disabled.fetch_add(bytes, Ordering::Relaxed);
        left.is_empty()
    }

    /// What [`MemoryUse`] says, for nodes with these names.
    pub(crate) fn report(
        &self,
        args: &[(DType, Shape)],
        name: impl Fn(usize) -> (String, String),
    ) -> MemoryUse {
        let in_arena = self.uses.iter().zip(&self.offsets);
        let in_arena = in_arena.filter(|(_, offset)| offset.is_some());
        let (least_bytes, peak) = most_alive(&lifetimes(in_arena.map(|(used, _)| used)));
        let block = |(used, offset): (&LoggedUse, &Option<usize>)| BlockUse {
            node: name(used.owner as usize),
            bytes: used.len,
            offset: *offset,
            from: used.from,
            to: used.to,
        };
        let shared = self.shared.iter().map(|&(node, bytes)| SharedOutput {
            node: name(node.index()),
            bytes,
        });
        MemoryUse {
            args: args.to_vec(),
            arena_bytes: self.bytes,
            in_any_order: self.is_any_order,
            least_bytes,
            peak,
            blocks: self.uses.iter().zip(&self.offsets).map(block).collect(),
            shared: shared.collect(),
            steps: self.steps.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }
}

fn lifetimes<'a>(uses: impl Iterator<Item = &'a LoggedUse>) -> Vec<Lifetime> {
    let lifetime = |used: &LoggedUse| Lifetime {
        len: used.len,
        from: used.from,
        to: used.to.unwrap_or(u32::MAX),
    };
    uses.map(lifetime).collect()
}
