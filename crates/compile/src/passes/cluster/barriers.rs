//! [`Barriers`]: what nodes wait for, as far as groups of nodes must not mix it.

use ferroflow_graph::{Graph, Node, NodeId};
use rustc_hash::FxHashMap;

/// For each node, the barriers that it waits for: nodes in no group that take time or read a group.
pub(super) struct Barriers {
    /// The number of the set of each node.
    set: Vec<u32>,
}

/// The most barriers, and sets of them.
const MAX_BARRIERS: usize = 8192;

impl Barriers {
    /// The barriers of a graph whose nodes `order` has; `fits` says which may be in a group. `None` if there are too many.
    pub(super) fn new(
        graph: &Graph,
        order: &[NodeId],
        fits: &[bool],
        takes_time: impl Fn(&Node) -> bool,
    ) -> Option<Barriers> {
        let is_barrier = |id: NodeId| {
            let node = graph.node(id);
            let reads_group = || node.predecessors().any(|p| fits[p.index()]);
            !fits[id.index()] && (takes_time(node) || reads_group())
        };
        let barriers = order.iter().filter(|id| is_barrier(**id));
        let number: FxHashMap<NodeId, usize> = barriers.copied().zip(0..).collect();
        let words = number.len().div_ceil(64);
        if number.len() > MAX_BARRIERS {
            return None;
        }
        let mut sets: Vec<Vec<u64>> = vec![vec![0; words]];
        let mut known: FxHashMap<Vec<u64>, u32> = FxHashMap::from_iter([(sets[0].clone(), 0)]);
        // Those before a node, and with it those before what reads the node.
        let (mut set, mut behind) = (vec![0u32; graph.id_bound()], vec![0u32; graph.id_bound()]);
        for &id in order {
            let mut of_inputs: Vec<u32> = graph
                .node(id)
                .predecessors()
                .map(|p| behind[p.index()])
                .collect();
            of_inputs.sort_unstable();
            of_inputs.dedup();
            let own = number.get(&id);
            set[id.index()] = match of_inputs[..] {
                [] => 0,
                [one] => one,
                _ => {
                    let mut all = vec![0; words];
                    for i in of_inputs {
                        all.iter_mut()
                            .zip(&sets[i as usize])
                            .for_each(|(a, b)| *a |= b);
                    }
                    intern(&mut sets, &mut known, all)?
                }
            };
            behind[id.index()] = match own {
                None => set[id.index()],
                Some(number) => {
                    let mut all = sets[set[id.index()] as usize].clone();
                    all[number / 64] |= 1 << (number % 64);
                    intern(&mut sets, &mut known, all)?
                }
            };
        }
        Some(Barriers { set })
    }

    /// The number of the barriers before a node.
    pub(super) fn of(&self, id: NodeId) -> u32 {
        self.set[id.index()]
    }
}

fn intern(
    sets: &mut Vec<Vec<u64>>,
    known: &mut FxHashMap<Vec<u64>, u32>,
    set: Vec<u64>,
) -> Option<u32> {
    if let Some(number) = known.get(&set) {
        return Some(*number);
    }
    if sets.len() > 2 * MAX_BARRIERS {
        return None;
    }
    let number = sets.len() as u32;
    sets.push(set.clone());
    known.insert(set, number);
    Some(number)
}
