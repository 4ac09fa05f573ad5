//! The error of a step that ended without all its results.

use crate::state::{ROOT, StepState};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_program::{Action, DEAD, EdgeKind, MergeState, NodeIdx, Plan};
use ferroflow_tensor::Tensor;

/// Nodes that a message names.
const MAX_NAMED: usize = 5;

impl StepState {
    /// The step's results. When nothing is left to run every one must be there.
    pub(crate) fn take_results(&mut self, plan: &Plan) -> Result<Vec<Tensor>> {
        let results = self.results_of(plan, ROOT).iter_mut();
        let results: Vec<_> = results.map(|r| std::mem::take(r).into_tensor()).collect();
        let missing = results.iter().position(Option::is_none);
        if missing.is_some() || self.iterations[ROOT as usize].outstanding > 0 {
            return Err(self.diagnose(plan, missing.unwrap_or(0)));
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// The error: the result was dead, or its producer never ran because of a deadlock.
    #[cold]
    fn diagnose(&self, plan: &Plan, result: usize) -> Status {
        let mut waiting = Vec::new();
        // What runs by a schedule never waits.
        for it in self.iterations.iter().filter(|it| !it.is_scheduled) {
            let frame = &plan.frames[it.frame.index()];
            for local in 0..frame.pending.len() {
                let idx = NodeIdx::new(frame.first_node as usize + local);
                let at = it.pending_base.wrapping_add(idx.index() as u32) as usize;
                let (now, fresh) = (self.pending[at], frame.pending[local]);
                let action = &plan.nodes[idx.index()].action;
                let waits = match action {
                    Action::Merge => MergeState::from_bits(now).is_unresolved(),
                    // Of a loop that continues.
                    Action::Exit => false,
                    _ => now & !DEAD != 0,
                };
                if waits && fresh != 0 {
                    waiting.push((idx, it.number));
                }
            }
        }
        // Those that wait only for another that waits are not the cause.
        let is_waiting = |n: NodeIdx| waiting.iter().any(|(w, _)| *w == n);
        let mut named = Vec::new();
        for &(idx, _) in waiting.iter().take(1000) {
            let sources = producers(plan, idx);
            if sources.iter().all(|s| !is_waiting(*s)) || plan.nodes.len() < 64 {
                let from: Vec<&str> = sources
                    .iter()
                    .take(MAX_NAMED)
                    .map(|s| plan.info[s.index()].name.as_str())
                    .collect();
                let info = &plan.info[idx.index()];
                named.push(format!(
                    "'{}' ({}) waits for {}",
                    info.name,
                    info.op,
                    from.join(", ")
                ));
            }
            if named.len() == MAX_NAMED {
                break;
            }
        }
        if named.is_empty() {
            return invalid_argument!(
                "Retval[{result}] does not have value: the fetched tensor is dead, in a branch \
                 that was not taken"
            );
        }
        invalid_argument!(
            "Retval[{result}] does not have value: the step cannot finish, since {}",
            named.join("; ")
        )
    }
}

fn producers(plan: &Plan, of: NodeIdx) -> Vec<NodeIdx> {
    let mut found = Vec::new();
    for (i, node) in plan.nodes.iter().enumerate() {
        let edges = plan.edges_of(node);
        if edges
            .iter()
            .any(|e| e.node == of && e.kind != EdgeKind::Result)
        {
            found.push(NodeIdx::new(i));
        }
    }
    found
}
