//! What the blocks of regions must be like: how they follow each other, and that values are defined
//! before they are used.

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

/// Looks for operations that read what is not there yet.
pub(super) struct Dominance<'m> {
    module: &'m Module,
    /// Which values the operation that is looked at can read.
    is_visible: Vec<bool>,
}

impl<'m> Dominance<'m> {
    pub(super) fn new(module: &'m Module) -> Self {
        let mut dominance = Dominance {
            module,
            is_visible: vec![false; module.values.len()],
        };
        // In a module, what comes first does not matter.
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

    /// The first operation within `op` that reads what is not there yet, and where that is.
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
        // Nobody knows what an unknown operation does with its regions.
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

    /// What a block defines is there in the blocks that only it leads to. Blocks that nothing leads
    /// to may read anything.
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

/// For each block, those that cannot be reached but through it, and through no other such block
/// behind it: the tree of dominators, by Cooper, Harvey and Kennedy's way.
fn dominated(blocks: &[Block]) -> Vec<Vec<usize>> {
    let successors = |at: usize| -> &[usize] {
        let last = blocks.get(at).and_then(|(_, ops)| ops.last());
        last.map_or(&[], |op| &op.successors)
    };
    // Blocks in the order in which a walk leaves them.
    let mut left = Vec::new();
    let mut number = vec![usize::MAX; blocks.len()];
    let mut is_seen = vec![false; blocks.len()];
    let mut open = vec![(0, true)];
    while let Some((at, enters)) = open.pop() {
        if !enters {
            if let Some(slot) = number.get_mut(at) {
                *slot = left.len();
            }
            left.push(at);
        } else if is_seen.get(at) == Some(&false) {
            if let Some(slot) = is_seen.get_mut(at) {
                *slot = true;
            }
            open.push((at, false));
            open.extend(successors(at).iter().map(|s| (*s, true)));
        }
    }
    let number = |at: usize| number.get(at).copied().filter(|n| *n != usize::MAX);
    // From here on, blocks have the numbers in which they were left; the first is the last.
    let n = left.len();
    let mut predecessors = vec![Vec::new(); n];
    for (i, at) in left.iter().enumerate() {
        for successor in successors(*at).iter().filter_map(|s| number(*s)) {
            if let Some(list) = predecessors.get_mut(successor) {
                list.push(i);
            }
        }
    }
    let mut parent: Vec<Option<usize>> = vec![None; n];
    if let Some(last) = parent.last_mut() {
        *last = Some(n - 1);
    }
    let mut changes = true;
    while std::mem::take(&mut changes) {
        for i in (0..n.saturating_sub(1)).rev() {
            let mut common: Option<usize> = None;
            for predecessor in predecessors.get(i).into_iter().flatten() {
                let up = |at: usize| parent.get(at).copied().flatten();
                if up(*predecessor).is_none() || common == Some(n - 1) {
                    continue;
                }
                let Some(mut a) = common else {
                    common = Some(*predecessor);
                    continue;
                };
                let mut b = *predecessor;
                while a != b {
                    match a < b {
                        true => a = up(a).unwrap_or(n - 1),
                        false => b = up(b).unwrap_or(n - 1),
                    }
                }
                common = Some(a);
            }
            if let Some(slot) = parent.get_mut(i)
                && *slot != common
            {
                *slot = common;
                changes = true;
            }
        }
    }
    let mut children = vec![Vec::new(); blocks.len()];
    for (i, up) in parent.iter().enumerate().take(n.saturating_sub(1)) {
        let above = up.and_then(|up| left.get(up)).copied();
        let list = above.and_then(|above| children.get_mut(above));
        if let (Some(list), Some(at)) = (list, left.get(i)) {
            list.push(*at);
        }
    }
    children
}
