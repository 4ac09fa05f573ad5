//! Checks the blocks of regions: how they follow each other, and that values are defined before they are
//! used.

use super::diagnostic::Diagnostic;
use super::forms;
use super::ir::{Module, Op, Region, Value};
use super::verify::op_error;

type Block<'o> = (&'o [Value], &'o [Op]);

fn blocks(region: &Region) -> Vec<Block<'_>> {
    let first = (region.n_blocks > 0).then_some((&region.args[..], &region.ops[..]));
    let others = region.others.iter().map(|b| (&b.args[..], &b.ops[..]));
    first.into_iter().chain(others).collect()
}

/// Checks where the blocks in the regions of `op` begin and end.
pub(super) fn check_blocks(op: &Op) -> Result<(), Box<Diagnostic>> {
    for region in &op.regions {
        let leads_to_first = |inner: &Op| inner.successors.contains(&0);
        if region.all_ops().any(leads_to_first) {
            let message = "entry block of region may not have predecessors";
            return Err(Box::new(op_error(op, message)));
        }
        let blocks = blocks(region);
        for (_, ops) in &blocks {
            let Some((last, before)) = ops.split_last() else {
                if blocks.len() > 1 || op.is_func() {
                    let message = "empty block: expect at least a terminator";
                    return Err(Box::new(Diagnostic::error(&op.loc, message)));
                }
                continue;
            };
            if let Some(inner) = before.iter().find(|o| !o.successors.is_empty()) {
                let message = "operation with block successors must terminate its parent block";
                return Err(Box::new(op_error(inner, message)));
            }
            let ends = |o: &&Op| matches!(&*o.name, "tfrt.return" | "std.return");
            if let Some(inner) = before.iter().find(ends) {
                let message = "must be the last operation in the parent block";
                return Err(Box::new(op_error(inner, message)));
            }
            let may_end = &*last.name == "tfrt.return" || forms::spec(&last.name).is_none();
            if blocks.len() > 1 && !may_end {
                return Err(Box::new(op_error(last, "block with no terminator")));
            }
        }
    }
    Ok(())
}

/// Finds operations that read values before they are defined.
pub(super) struct Dominance<'m> {
    module: &'m Module,
    /// The values that the current operation can read.
    is_visible: Vec<bool>,
}

impl<'m> Dominance<'m> {
    pub(super) fn new(module: &'m Module) -> Self {
        let mut dominance = Dominance {
            module,
            is_visible: vec![false; module.values.len()],
        };
        // Order does not matter in a module.
        for op in &module.ops {
            dominance.show(&op.results, true);
        }
        dominance
    }

    fn show(&mut self, values: &[Value], is_visible: bool) {
        for value in values {
            if let Some(slot) = self.is_visible.get_mut(value.index()) {
                *slot = is_visible;
            }
        }
    }

    fn show_block(&mut self, (args, ops): Block, is_visible: bool) {
        self.show(args, is_visible);
        ops.iter().for_each(|op| self.show(&op.results, is_visible));
    }

    /// The first operation within `op` that reads a value before it is defined.
    pub(super) fn check(&mut self, op: &Op) -> Result<(), Vec<Diagnostic>> {
        for (i, operand) in op.operands.iter().enumerate() {
            if self.is_visible.get(operand.index()) != Some(&true) {
                let message = format!("operand #{i} does not dominate this use");
                let mut all = vec![op_error(op, message)];
                if let Some(info) = self.module.values.get(operand.index()) {
                    all.push(Diagnostic::note(&info.loc, "operand defined here"));
                }
                return Err(all);
            }
        }
        // The regions of an unknown operation may run in any order.
        let is_known = op.is_func() || forms::spec(&op.name).is_some();
        for region in &op.regions {
            let blocks = blocks(region);
            match is_known {
                true => self.in_order(&blocks)?,
                false => self.in_any_order(&blocks)?,
            }
        }
        Ok(())
    }

    fn in_any_order(&mut self, blocks: &[Block]) -> Result<(), Vec<Diagnostic>> {
        blocks
            .iter()
            .for_each(|block| self.show_block(*block, true));
        for op in blocks.iter().flat_map(|(_, ops)| *ops) {
            self.check(op)?;
        }
        blocks
            .iter()
            .for_each(|block| self.show_block(*block, false));
        Ok(())
    }

    /// Values of a block are visible in the blocks that it dominates. Unreachable blocks may read
    /// anything.
    fn in_order(&mut self, blocks: &[Block]) -> Result<(), Vec<Diagnostic>> {
        let children = dominated(blocks);
        let mut open = vec![(0, true)];
        while let Some((at, enters)) = open.pop() {
            let Some(block) = blocks.get(at) else {
                continue;
            };
            if !enters {
                self.show_block(*block, false);
                continue;
            }
            self.show(block.0, true);
            for op in block.1 {
                self.check(op)?;
                self.show(&op.results, true);
            }
            open.push((at, false));
            let below = children.get(at).into_iter().flatten();
            open.extend(below.map(|child| (*child, true)));
        }
        Ok(())
    }
}

/// The tree of dominators: for each block, those that it immediately dominates. Keith Cooper, Timothy Harvey
/// and Ken Kennedy: A Simple, Fast Dominance Algorithm, 2001.
fn dominated(blocks: &[Block]) -> Vec<Vec<usize>> {
    let n = blocks.len();
    let mut children = vec![Vec::new(); n];
    if n == 0 {
        return children;
    }
    let successors = |at: usize| {
        let successors = blocks[at].1.last().map_or(&[][..], |op| &op.successors);
        successors.iter().copied().filter(move |s| *s < n)
    };
    // Blocks in postorder.
    let (mut left, mut number) = (Vec::new(), vec![usize::MAX; n]);
    let mut is_seen = vec![false; n];
    let mut open = vec![(0, true)];
    while let Some((at, enters)) = open.pop() {
        if !enters {
            number[at] = left.len();
            left.push(at);
        } else if !std::mem::replace(&mut is_seen[at], true) {
            open.push((at, false));
            open.extend(successors(at).map(|s| (s, true)));
        }
    }
    // From here on, blocks have these numbers; the first block is the last.
    let root = left.len() - 1;
    let mut predecessors = vec![Vec::new(); left.len()];
    for (i, at) in left.iter().enumerate() {
        successors(*at).for_each(|s| predecessors[number[s]].push(i));
    }
    let mut parent: Vec<Option<usize>> = vec![None; left.len()];
    parent[root] = Some(root);
    let up = |parent: &[Option<usize>], at: usize| parent[at].unwrap_or(root);
    let mut changes = true;
    while std::mem::take(&mut changes) {
        for i in (0..root).rev() {
            let known = predecessors[i].iter().copied();
            let common = known
                .filter(|p| parent[*p].is_some())
                .reduce(|mut a, mut b| {
                    while a != b {
                        match a < b {
                            true => a = up(&parent, a),
                            false => b = up(&parent, b),
                        }
                    }
                    a
                });
            changes |= parent[i] != common;
            parent[i] = common;
        }
    }
    for (i, at) in left.iter().enumerate().take(root) {
        children[left[up(&parent, i)]].push(*at);
    }
    children
}
