//! How much a function of a plan does: whether a call of it has ended when it returns.

use crate::plan::{Action, FrameKind, Plan};
use crate::wiring::nodes_of;
use ferroflow_opdef::Cost;

/// What a kernel costs that is worth another thread, where others cost 1; what a stream must.
pub(crate) const HEAVY: i64 = 1000;
pub(crate) const THRESHOLD: i64 = HEAVY / 2;
/// So many kernels that cost 1 may be a stream; with what the lowering adds to them they are fewer than
/// the threshold.
const MANY: usize = THRESHOLD as usize / 4;

/// What a function of a plan does with those that it calls, counted once for each.
#[derive(Clone, Copy, Default)]
pub(crate) struct Size {
    /// Nodes that are streams of their own where others are beside them.
    n_expensive: usize,
    n_others: usize,
    /// Whether something in it ends elsewhere.
    is_async: bool,
}

impl Size {
    pub(crate) fn add(&mut self, other: Size) {
        self.n_expensive = self.n_expensive.saturating_add(other.n_expensive);
        self.n_others = self.n_others.saturating_add(other.n_others);
        self.is_async |= other.is_async;
    }

    /// Whether all of it has ended when its call returns: it is one stream for certain.
    pub(crate) fn ends_at_once(self) -> bool {
        !self.is_async && self.n_expensive + self.n_others / MANY <= 1
    }
}

/// The sizes of all functions; `None` if a node needs the engine `dataflow`, or a function calls
/// itself.
pub(crate) fn sizes(plan: &Plan) -> Option<Vec<Size>> {
    let n = plan.frames.len();
    let (mut sizes, mut callees) = (vec![Size::default(); n], vec![Vec::new(); n]);
    for (f, frame) in plan.frames.iter().enumerate() {
        if frame.kind != FrameKind::Function {
            return None;
        }
        let (size, list) = (sizes.get_mut(f)?, callees.get_mut(f)?);
        for node in plan.nodes.get(nodes_of(plan, f))? {
            match node.cost {
                Cost::Expensive => size.n_expensive += 1,
                _ => size.n_others += 1,
            }
            size.is_async |= node.cost == Cost::Async;
            match &node.action {
                Action::Kernel(_) | Action::Arg(_) | Action::Const(_) | Action::Forward => {}
                Action::Call(callee) => list.push(callee.index()),
                Action::Branch { branches, .. } => list.extend(branches.iter().map(|b| b.index())),
                Action::While { cond, body } => list.extend([cond.index(), body.index()]),
                _ => return None,
            }
        }
    }
    // Each function when those that it calls are known; what never is calls itself.
    let mut left: Vec<usize> = callees.iter().map(Vec::len).collect();
    let mut callers = vec![Vec::new(); n];
    for (caller, list) in callees.iter().enumerate() {
        for callee in list {
            callers.get_mut(*callee)?.push(caller);
        }
    }
    let mut open: Vec<usize> = (0..n).filter(|f| left.get(*f) == Some(&0)).collect();
    let mut n_known = 0;
    while let Some(known) = open.pop() {
        n_known += 1;
        let size = *sizes.get(known)?;
        for caller in callers.get(known)? {
            sizes.get_mut(*caller)?.add(size);
            let left = left.get_mut(*caller)?;
            *left -= 1;
            if *left == 0 {
                open.push(*caller);
            }
        }
    }
    (n_known == n).then_some(sizes)
}
