//! Offsets of blocks in one arena: blocks that are alive at once do not overlap.
//!
//! The largest block goes first, each into the smallest gap that holds it: "greedy by size" of "Efficient Memory Management
//! for Deep Neural Net Inference" (Pisarchyk and Lee, 2020), which TensorFlow Lite uses. If that takes more than the blocks
//! that are alive at once, the order of time is tried.

use ferroflow_tensor::BlockPlace;
use std::cmp::Reverse;

/// A block that is alive from one moment until before another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub(crate) len: usize,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl Lifetime {
    pub(crate) fn meets(&self, other: &Lifetime) -> bool {
        self.from < other.to && other.from < self.to
    }

    /// The bytes that it takes in an arena.
    fn size(&self) -> usize {
        self.len.next_multiple_of(BlockPlace::ALIGN)
    }
}

/// Returns the offset of each block, and the bytes of the arena.
pub(crate) fn assign(blocks: &[Lifetime]) -> (Vec<usize>, usize) {
    let meet = |a: usize, b: usize| blocks[a].meets(&blocks[b]);
    let best = in_order(blocks, &by_size(blocks), &meet);
    if best.1 == most_alive(blocks).0 {
        return best;
    }
    let mut by_time: Vec<usize> = (0..blocks.len()).collect();
    by_time.sort_by_key(|&i| blocks[i].from);
    let other = in_order(blocks, &by_time, &meet);
    if other.1 < best.1 { other } else { best }
}

/// As [`assign`]; two blocks may be in use at once unless they are `apart`, whatever their times are.
pub(crate) fn assign_apart(
    blocks: &[Lifetime],
    apart: impl Fn(usize, usize) -> bool,
) -> (Vec<usize>, usize) {
    let meet = |a: usize, b: usize| blocks[a].meets(&blocks[b]) || !apart(a, b);
    in_order(blocks, &by_size(blocks), &meet)
}

fn by_size(blocks: &[Lifetime]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&i| (Reverse(blocks[i].size()), blocks[i].from));
    order
}

/// [`assign`] with the blocks in this order.
fn in_order(
    blocks: &[Lifetime],
    order: &[usize],
    meet: &impl Fn(usize, usize) -> bool,
) -> (Vec<usize>, usize) {
    let mut offsets = vec![0usize; blocks.len()];
    // Those that have offsets, in the order of these.
    let mut placed: Vec<usize> = Vec::with_capacity(blocks.len());
    let mut bytes = 0;
    for &i in order {
        let block = &blocks[i];
        let (mut end, mut best) = (0, None);
        for &other in placed.iter().filter(|&&p| meet(p, i)) {
            let start = offsets[other];
            let gap = start.saturating_sub(end);
            if gap >= block.size() && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, end));
            }
            end = end.max(start + blocks[other].size());
        }
        offsets[i] = best.map_or(end, |(_, at)| at);
        bytes = bytes.max(offsets[i] + block.size());
        let at = placed.partition_point(|&p| offsets[p] <= offsets[i]);
        placed.insert(at, i);
    }
    (offsets, bytes)
}

/// Returns the most bytes that are alive at once, which no arena can do without, and the first moment when they are.
pub(crate) fn most_alive(blocks: &[Lifetime]) -> (usize, u32) {
    let begins = blocks.iter().map(|b| (b.from, true, b.size()));
    let ends = blocks.iter().map(|b| (b.to, false, b.size()));
    let mut events: Vec<(u32, bool, usize)> = begins.chain(ends).collect();
    events.sort_unstable();
    let (mut alive, mut most) = (0, (0, 0));
    for (moment, begins, size) in events {
        match begins {
            true => alive += size,
            false => alive -= size,
        }
        if alive > most.0 {
            most = (alive, moment);
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_testkit::random::Rng;

    fn blocks(rows: &[(usize, u32, u32)]) -> Vec<Lifetime> {
        let block = |&(len, from, to): &(usize, u32, u32)| Lifetime { len, from, to };
        rows.iter().map(block).collect()
    }

    #[track_caller]
    fn check(rows: &[(usize, u32, u32)], offsets: &[usize], bytes: usize, alive: (usize, u32)) {
        let blocks = blocks(rows);
        assert_eq!(assign(&blocks), (offsets.to_vec(), bytes));
        assert_eq!(most_alive(&blocks), alive);
    }

    #[test]
    fn known_rows() {
        check(&[], &[], 0, (0, 0));
        // Of a chain, each second block has the same place.
        let chain = [(1024, 0, 2), (1024, 1, 4), (1024, 3, 6), (1024, 5, 7)];
        check(&chain, &[0, 1024, 0, 1024], 2048, (2048, 1));
        // One that lives long is out of the way of the others.
        let skip = [(4096, 0, 3), (1024, 1, 9), (4096, 4, 6), (4096, 7, 8)];
        check(&skip, &[0, 4096, 0, 0], 5120, (5120, 1));
        // The smallest gap is used.
        let gaps = [
            (4096, 0, 9),
            (3072, 0, 2),
            (2048, 0, 9),
            (1024, 0, 2),
            (1024, 0, 9),
            (1000, 3, 9),
        ];
        check(
            &gaps,
            &[0, 4096, 7168, 9216, 10240, 9216],
            11264,
            (11264, 0),
        );
        // In the order of time less is needed than in that of sizes.
        let turns = [
            (1024, 0, 6),
            (2048, 1, 2),
            (1024, 3, 7),
            (1024, 5, 11),
            (2048, 8, 9),
        ];
        check(&turns, &[0, 1024, 1024, 2048, 0], 3072, (3072, 1));
        // Sizes are whole cache lines.
        check(&[(1025, 0, 2), (1025, 1, 3)], &[0, 1088], 2176, (2176, 1));
    }

    #[test]
    fn blocks_that_live_at_once_are_apart() {
        let mut random = Rng(1);
        let mut below = |n| random.below(n);
        for round in 0..300 {
            let n = 1 + below(60);
            let mut rows = Vec::new();
            for _ in 0..n {
                let len = 1024 + below(1 + round * 1000);
                let from = below(50) as u32;
                rows.push((len, from, from + 1 + below(20) as u32));
            }
            let blocks = blocks(&rows);
            let (offsets, bytes) = assign(&blocks);
            let (alive, moment) = most_alive(&blocks);
            for (i, a) in blocks.iter().enumerate() {
                assert!(
                    offsets[i].is_multiple_of(BlockPlace::ALIGN) && offsets[i] + a.len <= bytes
                );
                for (j, b) in blocks.iter().enumerate().skip(i + 1) {
                    let is_apart =
                        offsets[i] + a.len <= offsets[j] || offsets[j] + b.len <= offsets[i];
                    assert!(is_apart || !a.meets(b), "{a:?} at {} and {b:?}", offsets[i]);
                }
            }
            let at_once = blocks.iter().filter(|b| b.from <= moment && moment < b.to);
            assert_eq!(at_once.map(Lifetime::size).sum::<usize>(), alive);
            let sum: usize = blocks.iter().map(Lifetime::size).sum();
            assert!(alive <= bytes && bytes <= sum, "{alive} {bytes} {sum}");
        }
    }
}
