//! While nodes whose condition and body run by static schedules: the same two iterations serve the whole loop, one
//! phase follows the other without the list of ready nodes, and the variables stay in the slots of the body's results.

use crate::calls::Phase;
use crate::kernel::Env;
use crate::propagate::are_small;
use crate::state::{Owner, StepState, TaggedNode};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::Value;
use ferroflow_program::{Action, ArgEdge, FrameIdx, NodeIdx};

impl StepState {
    /// Begins the While `node`, which is call `id` and has its variables, if it can run in place. Returns whether it can.
    pub(crate) fn begin_in_place(&mut self, env: &Env, id: u32, node: NodeIdx) -> bool {
        let Action::While { cond, body } = env.plan.nodes[node.index()].action else {
            return false;
        };
        let vars = &self.calls.all[id as usize].vars;
        let is_small = || are_small(vars.iter().flatten());
        let is_scheduled = |f: FrameIdx| env.uses_schedule(&env.plan.frames[f.index()], is_small);
        let n_results = env.plan.frames[body.index()].n_results;
        if !is_scheduled(cond) || !is_scheduled(body) || n_results != vars.len() {
            return false;
        }
        let [cond, body] =
            [cond, body].map(|f| self.new_iteration(env.plan, f, Owner::Call(id), 0, true));
        let call = &mut self.calls.all[id as usize];
        call.in_place = Some([cond, body]);
        let mut vars = std::mem::take(&mut call.vars);
        for (result, var) in self
            .results_of(env.plan, body)
            .iter_mut()
            .zip(vars.drain(..))
        {
            *result = var.into();
        }
        self.calls.all[id as usize].vars = vars;
        self.begin_cond(env, id, [cond, body]);
        let node = NodeIdx::new(0);
        self.inexpensive.push(TaggedNode { node, iter: cond });
        true
    }

    /// Goes from the condition to the body or back, if call `id`, whose iteration is at its end, is a While that runs in
    /// place and continues. Returns the iteration to run.
    pub(crate) fn next_phase(&mut self, env: &Env, id: u32) -> Result<Option<u32>> {
        let call = &self.calls.all[id as usize];
        let (Some([cond, body]), Some(caller)) = (call.in_place, call.caller) else {
            return Ok(None);
        };
        match call.phase {
            Phase::Cond => {
                self.check_results(env, id, cond)?;
                if !self.take_condition(env, caller.node, cond)? {
                    return Ok(None);
                }
                self.begin_body(env, id, [cond, body]);
                Ok(Some(body))
            }
            Phase::Body => {
                self.check_results(env, id, body)?;
                self.begin_cond(env, id, [cond, body]);
                Ok(Some(cond))
            }
            Phase::Plain => Err(internal!("a call of a function has phases")),
        }
    }

    /// Delivers copies of the variables to the condition.
    fn begin_cond(&mut self, env: &Env, id: u32, [cond, body]: [u32; 2]) {
        let vars = self.first_variable(env, body);
        self.begin_phase(env, id, [body, cond], Phase::Cond);
        let it = &self.iterations[cond as usize];
        let (base, frame) = (it.slot_base, &env.plan.frames[it.frame.index()]);
        for edge in frame.schedule.iter().flat_map(|s| &s.args) {
            let value = self.slots[(vars + edge.arg) as usize].clone();
            self.slots[(base + edge.slot) as usize] = value;
        }
        self.set_const_results(env.plan, frame, cond);
    }

    /// Delivers the variables to the body. Those that it returns unchanged stay in their slots.
    fn begin_body(&mut self, env: &Env, id: u32, [cond, body]: [u32; 2]) {
        let vars = self.first_variable(env, body);
        self.begin_phase(env, id, [cond, body], Phase::Body);
        let it = &self.iterations[body as usize];
        let (base, frame) = (it.slot_base, &env.plan.frames[it.frame.index()]);
        let Some(schedule) = &frame.schedule else {
            return;
        };
        let edges = &schedule.variables;
        for edge in &edges.inputs {
            let value = self.take_variable(vars, edge);
            self.slots[(base + edge.slot) as usize] = value;
        }
        for &unused in &edges.unused {
            self.slots[(vars + unused) as usize].clear();
        }
        if !edges.exchanged.is_empty() {
            // All are taken before the first takes the place of another.
            let mut taken = std::mem::take(&mut self.exchanged);
            taken.extend(edges.exchanged.iter().map(|e| self.take_variable(vars, e)));
            for (edge, value) in edges.exchanged.iter().zip(taken.drain(..)) {
                self.slots[(base + edge.slot) as usize] = value;
            }
            self.exchanged = taken;
        }
        self.set_const_results(env.plan, frame, body);
    }

    #[inline]
    fn take_variable(&mut self, vars: u32, edge: &ArgEdge) -> Value {
        let slot = &mut self.slots[(vars + edge.arg) as usize];
        match edge.last {
            true => std::mem::take(slot),
            false => slot.clone(),
        }
    }

    /// The slot of the first variable of a loop whose body runs in `body`.
    #[inline]
    fn first_variable(&self, env: &Env, body: u32) -> u32 {
        let it = &self.iterations[body as usize];
        it.slot_base + env.plan.frames[it.frame.index()].first_result
    }

    /// Makes iteration `to` of call `id` ready to run, after `from` has.
    #[inline]
    fn begin_phase(&mut self, env: &Env, id: u32, [from, to]: [u32; 2], phase: Phase) {
        self.iterations[from as usize].outstanding = 0;
        let it = &mut self.iterations[to as usize];
        (it.cursor, it.outstanding) = (0, 1);
        let index = it.frame.index();
        let frame = &env.plan.frames[index];
        if frame.schedule.as_ref().is_some_and(|s| s.has_dead) {
            self.reset_pending(to, frame);
        }
        let call = &mut self.calls.all[id as usize];
        (call.iter, call.phase) = (to, phase);
    }
}
