//! Which blocks of a step cannot be in use at once, whatever the order in which its nodes run.

use ferroflow_opdef::Cost;
use ferroflow_program::{Action, EdgeKind, NodeIdx, Plan};
use ferroflow_tensor::LoggedUse;

/// Most nodes for which the order is computed: it takes a bit for each pair of them.
const MAX_NODES: usize = 8192;

/// Rows of bits.
struct Bits {
    width: usize,
    words: Vec<u64>,
}

impl Bits {
    fn new(n_rows: usize, n_bits: usize) -> Bits {
        let width = n_bits.div_ceil(64);
        Bits {
            width,
            words: vec![0; n_rows * width],
        }
    }

    fn row(&self, row: usize) -> &[u64] {
        &self.words[row * self.width..(row + 1) * self.width]
    }

    fn row_mut(&mut self, row: usize) -> &mut [u64] {
        &mut self.words[row * self.width..(row + 1) * self.width]
    }

    fn set(&mut self, row: usize, bit: usize) {
        self.words[row * self.width + bit / 64] |= 1 << (bit % 64);
    }

    fn get(&self, row: usize, bit: usize) -> bool {
        self.words[row * self.width + bit / 64] >> (bit % 64) & 1 == 1
    }

    /// Adds the bits of another row.
    fn unite(&mut self, row: usize, other: usize) {
        for i in 0..self.width {
            self.words[row * self.width + i] |= self.words[other * self.width + i];
        }
    }
}

/// The order of the blocks of a step.
pub(super) struct Order {
    /// For each block, the nodes that only run when no node uses it any more.
    after: Bits,
}

impl Order {
    /// The order of blocks that nodes of the root frame allocate; `readers` are (block, node that reads it). `None` if
    /// there are too many nodes.
    pub(super) fn new(
        plan: &Plan,
        uses: &[&LoggedUse],
        readers: impl Iterator<Item = (usize, NodeIdx)>,
    ) -> Option<Order> {
        let later = later_nodes(plan)?;
        let mut after = Bits::new(uses.len(), plan.root().nodes().len());
        let is_unseen = unseen_readers(plan);
        for (block, used) in uses.iter().enumerate() {
            if !is_unseen[used.owner as usize] {
                let later = later.row(used.owner as usize);
                after.row_mut(block).copy_from_slice(later);
            }
        }
        for (block, node) in readers {
            let row = after.row_mut(block);
            match is_unseen[node.index()] {
                true => row.fill(0),
                false => row
                    .iter_mut()
                    .zip(later.row(node.index()))
                    .for_each(|(word, later)| *word &= later),
            }
        }
        Some(Order { after })
    }

    /// Whether the nodes that use one block of `uses` all end before the other is allocated.
    pub(super) fn are_apart(&self, uses: &[&LoggedUse], a: usize, b: usize) -> bool {
        let comes_after = |a, b: usize| self.after.get(a, uses[b].owner as usize);
        uses[a].owner == uses[b].owner || comes_after(a, b) || comes_after(b, a)
    }
}

/// Returns for each node of the root frame whether its outputs go to what is not a plain kernel call, so that nothing is
/// known about how long they are read: loops, functions, other tasks, asynchronous kernels.
fn unseen_readers(plan: &Plan) -> Vec<bool> {
    let n = plan.root().nodes().len();
    let mut is_unseen = vec![false; n];
    // Consumers come later in the order of nodes, but for those of what is only passed on: two rounds see most of these.
    for _ in 0..2 {
        for node in (0..n).rev() {
            let edges = plan.edges_of(&plan.nodes[node]).iter();
            let mut reads =
                edges.filter(|e| matches!(e.kind, EdgeKind::Data | EdgeKind::MergeData));
            is_unseen[node] |= reads.any(|edge| {
                let reader = edge.node.index();
                match plan.nodes.get(reader) {
                    Some(consumer) if reader < n => match &consumer.action {
                        Action::Kernel(_) => consumer.cost == Cost::Async,
                        Action::Forward | Action::Switch | Action::Merge => is_unseen[reader],
                        Action::Trigger => false,
                        _ => true,
                    },
                    _ => true,
                }
            });
        }
    }
    is_unseen
}

/// Returns for each node of the root frame those that run after it in each step.
fn later_nodes(plan: &Plan) -> Option<Bits> {
    let n = plan.root().nodes().len();
    if n > MAX_NODES {
        return None;
    }
    let consumers = |node: usize| {
        let edges = plan.edges_of(&plan.nodes[node]).iter();
        let edges = edges.filter(move |e| e.kind != EdgeKind::Result && e.node.index() < n);
        edges.map(|e| e.node.index())
    };
    let mut n_waited = vec![0u32; n];
    (0..n).for_each(|node| consumers(node).for_each(|c| n_waited[c] += 1));
    let mut order: Vec<usize> = (0..n).filter(|&node| n_waited[node] == 0).collect();
    let mut done = 0;
    while let Some(&node) = order.get(done) {
        done += 1;
        for consumer in consumers(node) {
            n_waited[consumer] -= 1;
            if n_waited[consumer] == 0 {
                order.push(consumer);
            }
        }
    }
    let mut later = Bits::new(n, n);
    for &node in order.iter().rev() {
        for consumer in consumers(node) {
            later.set(node, consumer);
            later.unite(node, consumer);
        }
    }
    Some(later)
}
