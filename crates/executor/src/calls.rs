//! Function calls: a call is an iteration of the function's frame in the same step, so that calls
//! nest without using the thread's stack.

use crate::kernel::Env;
use crate::propagate::are_small;
use crate::state::{Owner, ROOT, StepState, TaggedNode};
use ferroflow_base::{Result, Status, internal, invalid_argument, resource_exhausted};
use ferroflow_opdef::Value;
use ferroflow_program::{Action, FrameIdx, NodeIdx};
use ferroflow_tensor::Tensor;

/// Deepest nesting of calls.
const MAX_DEPTH: u32 = 100_000;

/// The use of a call's results.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// They are the node's outputs.
    #[default]
    Plain,
    /// The first is the loop's condition.
    Cond,
    /// They are the loop's variables.
    Body,
}

/// A call in progress.
#[derive(Default)]
pub(crate) struct Call {
    pub(crate) iter: u32,
    /// The calling node.
    pub(crate) caller: Option<TaggedNode>,
    depth: u32,
    pub(crate) phase: Phase,
    /// Variables of a While that does not run in place.
    pub(crate) vars: Vec<Option<Tensor>>,
    /// The iterations of the condition and the body, if both run by schedules: they serve the whole loop. The variables
    /// are in the slots of the body's results.
    pub(crate) in_place: Option<[u32; 2]>,
}

/// All calls of a step, with those that can be reused. The first is the step itself.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) all: Vec<Call>,
    free: Vec<u32>,
}

impl Calls {
    pub(crate) fn add_root(&mut self) -> u32 {
        self.all.push(Call::default());
        0
    }

    /// The node that made a call, if it is not the step itself.
    pub(crate) fn caller_of(&self, call: u32) -> Option<TaggedNode> {
        self.all[call as usize].caller
    }

    pub(crate) fn clear(&mut self) {
        self.all.truncate(1);
        self.free.clear();
    }
}

impl StepState {
    /// Calls function `frame` with `args` for node `item`.
    pub(crate) fn begin_call(
        &mut self,
        env: &Env,
        item: TaggedNode,
        frame: FrameIdx,
        mut args: Vec<Option<Tensor>>,
    ) -> Result<()> {
        let depth = match self.iterations[item.iter as usize].owner {
            Owner::Call(caller) => self.calls.all[caller as usize].depth + 1,
            Owner::Loop(_) => self.depth_of(item.iter) + 1,
        };
        self.check_size()?;
        if depth > MAX_DEPTH {
            return Err(resource_exhausted!(
                "functions call each other more than {MAX_DEPTH} deep (last '{}'); does the \
                 recursion end?",
                env.plan.frames[frame.index()].name
            ));
        }
        let is_loop = matches!(
            env.plan.nodes[item.node.index()].action,
            Action::While { .. }
        );
        let id = self.calls.free.pop().unwrap_or_else(|| {
            self.calls.all.push(Call::default());
            (self.calls.all.len() - 1) as u32
        });
        let call = &mut self.calls.all[id as usize];
        (call.caller, call.depth) = (Some(item), depth);
        if is_loop {
            call.phase = Phase::Cond;
            std::mem::swap(&mut call.vars, &mut args);
            self.args = args;
            if self.begin_in_place(env, id, item.node) {
                return Ok(());
            }
            let iter = self.start_phase(env, id, frame, Phase::Cond);
            self.release(env, iter)
        } else {
            call.phase = Phase::Plain;
            let iter = self.start_function(env, id, frame, &mut args);
            args.clear();
            self.args = args;
            self.release(env, iter)
        }
    }

    /// The number of calls around an iteration of a loop.
    fn depth_of(&self, mut iter: u32) -> u32 {
        loop {
            match self.iterations[iter as usize].owner {
                Owner::Call(call) => return self.calls.all[call as usize].depth,
                Owner::Loop(id) => iter = self.loops.parent_of(id),
            }
        }
    }

    /// Starts `frame` as (the next phase of) call `id`; its iteration has one outstanding, which
    /// the caller of this releases.
    fn start_function(
        &mut self,
        env: &Env,
        id: u32,
        frame: FrameIdx,
        args: &mut [Option<Tensor>],
    ) -> u32 {
        let is_small = || are_small(args.iter().flatten());
        let is_scheduled = env.uses_schedule(&env.plan.frames[frame.index()], is_small);
        let iter = self.new_iteration(env.plan, frame, Owner::Call(id), 0, is_scheduled);
        self.iterations[iter as usize].outstanding = 1;
        let call = &mut self.calls.all[id as usize];
        call.iter = iter;
        self.begin_function(env, frame, iter, args);
        iter
    }

    /// Starts the condition or the body of a While with its variables.
    fn start_phase(&mut self, env: &Env, id: u32, frame: FrameIdx, phase: Phase) -> u32 {
        let call = &mut self.calls.all[id as usize];
        call.phase = phase;
        let mut vars = std::mem::take(&mut call.vars);
        let iter = if phase == Phase::Body {
            self.start_function(env, id, frame, &mut vars)
        } else {
            // The condition gets copies of the variables that it reads.
            let mut copies = std::mem::take(&mut self.copies);
            copies.clear();
            let used = &env.plan.frames[frame.index()].args;
            copies.extend(
                vars.iter()
                    .zip(used)
                    .map(|(v, u)| u.and_then(|_| v.clone())),
            );
            let iter = self.start_function(env, id, frame, &mut copies);
            self.copies = copies;
            iter
        };
        self.calls.all[id as usize].vars = vars;
        iter
    }

    /// Fails if a result of call `id`, which runs in `iter`, is missing.
    pub(crate) fn check_results(&mut self, env: &Env, id: u32, iter: u32) -> Result<()> {
        let mut results = self.results_of(env.plan, iter).iter();
        match results.position(|r| matches!(r, Value::Empty)) {
            None => Ok(()),
            Some(missing) => Err(self.missing_result(env, id, iter, missing)),
        }
    }

    #[cold]
    fn missing_result(&self, env: &Env, id: u32, iter: u32, missing: usize) -> Status {
        let frame = self.iterations[iter as usize].frame;
        let name = &env.plan.frames[frame.index()].name;
        let error = invalid_argument!("Retval[{missing}] of function '{name}' does not have value");
        match self.calls.all[id as usize].caller {
            Some(caller) => env.at_node(caller.node, error),
            None => error,
        }
    }

    /// Takes the result of the condition of `node`, which ran in `iter`.
    pub(crate) fn take_condition(&mut self, env: &Env, node: NodeIdx, iter: u32) -> Result<bool> {
        let result = self.results_of(env.plan, iter).first_mut();
        let condition = match result.map(std::mem::take) {
            Some(Value::Tensor(t)) if t.is_on_device() => t.on_host().and_then(|t| is_true(&t)),
            Some(Value::Tensor(t)) => is_true(&t),
            _ => Err(internal!("the condition has no result")),
        };
        condition.map_err(|e| env.at_node(node, e))
    }

    /// Ends a call whose iteration is done. Returns the iteration of which one thing less is
    /// outstanding: the caller's, or that of the next phase.
    pub(crate) fn end_call(&mut self, env: &Env, id: u32) -> Result<u32> {
        let call = &mut self.calls.all[id as usize];
        let Some(caller) = call.caller else {
            return Ok(ROOT);
        };
        let (iter, phase, in_place) = (call.iter, call.phase, call.in_place.take());
        if let Some([cond, body]) = in_place {
            // The condition has been false.
            self.free_iteration(cond);
            self.output_results(env, body);
        } else {
            self.check_results(env, id, iter)?;
            match env.plan.nodes[caller.node.index()].action {
                Action::While { cond, body } => {
                    if let Some(next) = self.end_phase(env, id, (cond, body))? {
                        return Ok(next);
                    }
                }
                _ => {
                    debug_assert!(phase == Phase::Plain);
                    self.output_results(env, iter);
                }
            }
        }
        self.calls.free.push(id);
        self.propagate_liveness(env, caller.node, caller.iter, true);
        if self.iterations[caller.iter as usize].is_scheduled {
            self.resume_schedule(caller.iter);
        }
        Ok(caller.iter)
    }

    /// Makes the results of a function that ran in `iter` the outputs of the calling node.
    fn output_results(&mut self, env: &Env, iter: u32) {
        let mut outputs = std::mem::take(&mut self.outputs);
        for (output, result) in outputs.iter_mut().zip(self.results_of(env.plan, iter)) {
            *output = std::mem::take(result);
        }
        self.outputs = outputs;
        self.free_iteration(iter);
    }

    /// Ends a run of the condition or the body of While `id`. Returns the iteration of the next one; if the loop has ended,
    /// its variables are the outputs.
    fn end_phase(
        &mut self,
        env: &Env,
        id: u32,
        (cond, body): (FrameIdx, FrameIdx),
    ) -> Result<Option<u32>> {
        let call = &mut self.calls.all[id as usize];
        let iter = call.iter;
        if call.phase == Phase::Body {
            let mut vars = std::mem::take(&mut call.vars);
            for (var, result) in vars.iter_mut().zip(self.results_of(env.plan, iter)) {
                *var = std::mem::take(result).into_tensor();
            }
            self.calls.all[id as usize].vars = vars;
            self.free_iteration(iter);
            return Ok(Some(self.start_phase(env, id, cond, Phase::Cond)));
        }
        let Some(caller) = call.caller else {
            return Err(internal!("a While has no node"));
        };
        let continues = self.take_condition(env, caller.node, iter)?;
        self.free_iteration(iter);
        if continues {
            return Ok(Some(self.start_phase(env, id, body, Phase::Body)));
        }
        let vars = self.calls.all[id as usize].vars.drain(..);
        for (output, var) in self.outputs.iter_mut().zip(vars) {
            *output = var.into();
        }
        Ok(None)
    }
}

/// TensorFlow's rule for conditions: a scalar by its value, a string by its length, any other
/// tensor by whether it has elements.
pub(crate) fn is_true(t: &Tensor) -> Result<bool> {
    if let Some(b) = t.inline_scalar::<bool>() {
        return Ok(b);
    }
    if !t.shape().is_scalar() {
        return Ok(t.num_elements() > 0);
    }
    if let Ok(strings) = t.strings() {
        return Ok(strings.first().is_some_and(|s| !s.is_empty()));
    }
    ferroflow_tensor::dispatch!(t.dtype(), T in [f32, f64, i32, i64, u8, i16, i8, u16, u32, u64, bool] =>
        t.to_scalar::<T>().map(|v| v != T::default()),
        else Err(invalid_argument!("a condition of dtype {} is not supported", t.dtype())))
}
