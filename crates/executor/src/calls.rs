//! Function calls: a call is an iteration of the function's frame in the same step, so that calls
//! nest without using the thread's stack.

use crate::kernel::Env;
use crate::propagate::are_small;
use crate::state::{Owner, ROOT, StepState, TaggedNode};
use ferroflow_base::{Result, internal, invalid_argument, resource_exhausted};
use ferroflow_program::{Action, Frame, FrameIdx, Plan};
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
    pub(crate) frame: u32,
    pub(crate) iter: u32,
    /// The calling node.
    pub(crate) caller: Option<TaggedNode>,
    depth: u32,
    pub(crate) phase: Phase,
    pub(crate) results: Vec<Option<Tensor>>,
    /// Variables of a While.
    pub(crate) vars: Vec<Option<Tensor>>,
    /// The iterations of the condition and the body, if both run by schedules: they serve the whole loop.
    pub(crate) in_place: Option<[u32; 2]>,
}

/// All calls of a step, with those that can be reused. The first is the step itself.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) all: Vec<Call>,
    free: Vec<u32>,
}

impl Call {
    /// Takes the result of a condition.
    pub(crate) fn take_condition(&mut self) -> Result<bool> {
        match self.results.first_mut().map(Option::take) {
            Some(Some(t)) if t.is_on_device() => is_true(&t.on_host()?),
            Some(Some(t)) => is_true(&t),
            _ => Err(internal!("the condition has no result")),
        }
    }
}

impl Calls {
    pub(crate) fn add_root(&mut self, n_results: usize) -> u32 {
        self.all.push(Call {
            results: vec![None; n_results],
            ..Default::default()
        });
        0
    }

    pub(crate) fn reset_root(&mut self, plan: &Plan) {
        prepare_results(&mut self.all[0].results, plan, 0);
    }

    #[inline]
    pub(crate) fn set_result(&mut self, call: u32, index: usize, value: Option<Tensor>) {
        self.all[call as usize].results[index] = value;
    }

    /// The node that made a call, if it is not the step itself.
    pub(crate) fn caller_of(&self, call: u32) -> Option<TaggedNode> {
        self.all[call as usize].caller
    }

    /// The results of the step; those that were never set are dead.
    pub(crate) fn take_root_results(&mut self) -> Vec<Option<Tensor>> {
        std::mem::take(&mut self.all[0].results)
    }

    pub(crate) fn clear(&mut self) {
        self.all.truncate(1);
        self.free.clear();
    }
}

fn prepare_results(results: &mut Vec<Option<Tensor>>, plan: &Plan, frame: usize) {
    let frame = &plan.frames[frame];
    debug_assert!(results.iter().all(Option::is_none));
    results.resize(frame.n_results, None);
    set_const_results(results, plan, frame);
}

/// Sets the results that are constants.
#[inline]
pub(crate) fn set_const_results(results: &mut [Option<Tensor>], plan: &Plan, frame: &Frame) {
    for &(result, constant) in &frame.const_results {
        results[result as usize] = plan.consts.get(constant as usize).cloned();
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
            self.release_started(env, iter)
        } else {
            call.phase = Phase::Plain;
            let iter = self.start_function(env, id, frame, &mut args);
            args.clear();
            self.args = args;
            self.release_started(env, iter)
        }
    }

    fn release_started(&mut self, env: &Env, iter: u32) -> Result<()> {
        let it = &mut self.iterations[iter as usize];
        it.outstanding -= 1;
        match it.outstanding {
            0 => self.finish_iterations(env, iter),
            _ => Ok(()),
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
        (call.frame, call.iter) = (frame.index() as u32, iter);
        prepare_results(&mut call.results, env.plan, frame.index());
        self.begin_function(env, frame, iter, args.iter_mut().map(Option::take));
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

    /// Fails if a result of a call is missing.
    pub(crate) fn check_results(&self, env: &Env, id: u32) -> Result<()> {
        let call = &self.calls.all[id as usize];
        let (Some(missing), Some(caller)) =
            (call.results.iter().position(Option::is_none), call.caller)
        else {
            return Ok(());
        };
        let name = &env.plan.frames[call.frame as usize].name;
        let error = invalid_argument!("Retval[{missing}] of function '{name}' does not have value");
        Err(env.at_node(caller.node, error))
    }

    /// Ends a call whose iteration is done. Returns the iteration of which one thing less is
    /// outstanding: the caller's, or that of the next phase.
    pub(crate) fn end_call(&mut self, env: &Env, id: u32) -> Result<u32> {
        let call = &mut self.calls.all[id as usize];
        let Some(caller) = call.caller else {
            return Ok(ROOT);
        };
        let (iter, phase, in_place) = (call.iter, call.phase, call.in_place.take());
        if in_place.is_none() {
            self.check_results(env, id)?;
        }
        let node = caller.node;
        if let Some(iterations) = in_place {
            // The condition has been false.
            for iter in iterations {
                self.free_iteration(iter);
            }
            let call = &mut self.calls.all[id as usize];
            call.results.clear();
            std::mem::swap(&mut call.results, &mut call.vars);
        } else if let Action::While { cond, body } = env.plan.nodes[node.index()].action {
            self.free_iteration(iter);
            let call = &mut self.calls.all[id as usize];
            if phase == Phase::Body {
                std::mem::swap(&mut call.results, &mut call.vars);
                return Ok(self.start_phase(env, id, cond, Phase::Cond));
            }
            if call.take_condition().map_err(|e| env.at_node(node, e))? {
                return Ok(self.start_phase(env, id, body, Phase::Body));
            }
            std::mem::swap(&mut call.results, &mut call.vars);
        } else {
            self.free_iteration(iter);
        }
        let call = &mut self.calls.all[id as usize];
        for (output, result) in self.outputs.iter_mut().zip(&mut call.results) {
            *output = result.take().into();
        }
        self.calls.free.push(id);
        self.propagate_liveness(env, node, caller.iter, true);
        if self.iterations[caller.iter as usize].is_scheduled {
            self.resume_schedule(caller.iter);
        }
        Ok(caller.iter)
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
