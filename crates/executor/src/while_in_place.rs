//! While nodes whose condition and body run by static schedules: the same two iterations serve the whole loop, and
//! one phase follows the other without the list of ready nodes.

use crate::calls::{Phase, set_const_results};
use crate::kernel::Env;
use crate::propagate::are_small;
use crate::state::{Owner, StepState, TaggedNode};
use ferroflow_base::{Result, internal};
use ferroflow_program::{Action, FrameIdx, NodeIdx};

impl StepState {
    /// Begins the While `node`, which is call `id` and has its variables, if it can run in place. Returns whether it can.
    pub(crate) fn begin_in_place(&mut self, env: &Env, id: u32, node: NodeIdx) -> bool {
        let Action::While { cond, body } = env.plan.nodes[node.index()].action else {
            return false;
        };
        let vars = &self.calls.all[id as usize].vars;
        let is_small = || are_small(vars.iter().flatten());
        let is_scheduled = |f: FrameIdx| env.uses_schedule(&env.plan.frames[f.index()], is_small);
        // The result of the condition has its place where the first of the body has.
        let n_results = env.plan.frames[body.index()].n_results;
        if !is_scheduled(cond) || !is_scheduled(body) || n_results == 0 {
            return false;
        }
        self.calls.all[id as usize].results.resize(n_results, None);
        let iterations =
            [cond, body].map(|f| self.new_iteration(env.plan, f, Owner::Call(id), 0, true));
        self.calls.all[id as usize].in_place = Some(iterations);
        let (iter, node) = (iterations[0], NodeIdx::new(0));
        self.begin_phase(env, id, iter, Phase::Cond);
        self.inexpensive.push(TaggedNode { node, iter });
        true
    }

    /// Goes from the condition to the body or back, if call `id`, whose iteration is at its end, is a While that runs in
    /// place and continues. Returns the iteration to run.
    pub(crate) fn next_phase(&mut self, env: &Env, id: u32) -> Result<Option<u32>> {
        let call = &self.calls.all[id as usize];
        let (Some([cond, body]), Some(caller)) = (call.in_place, call.caller) else {
            return Ok(None);
        };
        if call.phase == Phase::Body || matches!(call.results.first(), Some(None)) {
            self.check_results(env, id)?;
        }
        let call = &mut self.calls.all[id as usize];
        let (from, to, phase) = match call.phase {
            Phase::Cond => {
                let condition = call.take_condition();
                match condition.map_err(|e| env.at_node(caller.node, e))? {
                    false => return Ok(None),
                    true => (cond, body, Phase::Body),
                }
            }
            Phase::Body => {
                std::mem::swap(&mut call.results, &mut call.vars);
                (body, cond, Phase::Cond)
            }
            Phase::Plain => return Err(internal!("a call of a function has phases")),
        };
        self.iterations[from as usize].outstanding = 0;
        self.begin_phase(env, id, to, phase);
        Ok(Some(to))
    }

    /// Delivers the variables to the condition or the body, whose iteration is `iter`.
    fn begin_phase(&mut self, env: &Env, id: u32, iter: u32, phase: Phase) {
        let it = &mut self.iterations[iter as usize];
        (it.cursor, it.outstanding) = (0, 1);
        let index = it.frame.index();
        let frame = &env.plan.frames[index];
        if frame.schedule.as_ref().is_some_and(|s| s.has_dead) {
            self.reset_pending(iter, frame);
        }
        let call = &mut self.calls.all[id as usize];
        (call.frame, call.iter, call.phase) = (index as u32, iter, phase);
        set_const_results(&mut call.results, env.plan, frame);
        let mut vars = std::mem::take(&mut call.vars);
        if phase == Phase::Cond {
            // The condition gets copies.
            for (arg, var) in frame.args.iter().zip(&vars) {
                if let Some(node) = *arg {
                    self.deliver_value(env, TaggedNode { node, iter }, 0, var.clone().into());
                }
            }
        } else {
            self.deliver_args(env, frame, iter, vars.iter_mut().map(Option::take));
        }
        self.calls.all[id as usize].vars = vars;
    }
}
