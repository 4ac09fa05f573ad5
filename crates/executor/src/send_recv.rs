//! Nodes that exchange tensors with other graphs of the same step, and with its client.

use crate::dataflow::Step;
use crate::kernel::Env;
use crate::offloaded::OffloadedNode;
use crate::state::{Outputs, Owner, ROOT, StepState, TaggedNode};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::{Rendezvous, Value, child_frame_id};
use ferroflow_program::Plan;
use ferroflow_sync::Parallelism;
use ferroflow_tensor::Tensor;
use std::sync::Arc;
use std::time::Instant;

impl StepState {
    /// Sends a tensor, `None` if it is dead. Send nodes run even if their input is dead.
    pub(crate) fn send(
        &self,
        env: &Env,
        item: TaggedNode,
        key: &str,
        tensor: Option<Tensor>,
    ) -> Result<()> {
        let key = self.full_key(env.plan, item, key);
        let sent = rendezvous(env).and_then(|r| r.send(&key, tensor));
        sent.map_err(|e| env.at_node(item.node, e))
    }

    /// The key of a transfer with the frame and iteration of its node.
    pub(crate) fn full_key(&self, plan: &Plan, item: TaggedNode, key: &str) -> String {
        let (frame, iteration) = self.frame_id(plan, item.iter);
        format!("{key};{frame}:{iteration}")
    }

    /// The frame id of an iteration, and its number. A function has those of its caller.
    pub(crate) fn frame_id(&self, plan: &Plan, iter: u32) -> (u64, u64) {
        if iter == ROOT {
            return (0, 0);
        }
        let it = &self.iterations[iter as usize];
        match it.owner {
            Owner::Call(call) => match self.calls.caller_of(call) {
                Some(caller) => self.frame_id(plan, caller.iter),
                None => (0, 0),
            },
            Owner::Loop(id) => {
                let (parent, number) = self.frame_id(plan, self.loops.parent_of(id));
                let name = &plan.frames[it.frame.index()].name;
                (child_frame_id(parent, number, name), it.number)
            }
        }
    }
}

fn rendezvous<'a>(env: &Env<'a>) -> Result<&'a Arc<dyn Rendezvous>> {
    let rendezvous = env.rendezvous;
    rendezvous.ok_or_else(|| internal!("the step has no rendezvous"))
}

impl Step {
    /// Receives a tensor; the thread that delivers it leaves the rest of the step to the pool.
    pub(crate) fn recv(self: &Arc<Self>, env: &Env, offloaded: &OffloadedNode, key: &str) {
        let (item, place, step) = (offloaded.item, offloaded.place, self.clone());
        let started = self.trace.as_ref().map(|_| Instant::now());
        let rendezvous = match rendezvous(env) {
            Ok(rendezvous) => rendezvous.clone(),
            Err(e) => return self.state.send((item, Err(env.at_node(item.node, e)))),
        };
        let (aborted, token) = (rendezvous.clone(), self.waiting.clone());
        let registration = self.waiting.on_cancel(move || {
            if let Err(reason) = token.check() {
                aborted.abort(reason);
            }
        });
        let done = move |tensor: Result<Option<Tensor>>| {
            drop(registration);
            let env = step.env();
            let outputs = match tensor {
                Ok(tensor) => Ok(Outputs::from_iter([Value::from(tensor)])),
                Err(e) => Err(env.at_node(item.node, e)),
            };
            if let (Some(started), Ok(outputs)) = (started, &outputs) {
                env.record(item.node, place, started, Vec::new(), outputs);
            }
            step.state.send((item, outputs));
            step.drive_elsewhere();
        };
        rendezvous.recv(key, Box::new(done));
    }

    /// Carries the step on as a task of the pool, so that the thread that delivers a tensor does not run
    /// the nodes that waited for it. A pool of width 1 may have no thread for the task.
    fn drive_elsewhere(self: &Arc<Self>) {
        if self.pool.width() == 1 && self.runner.is_none() {
            return self.drive();
        }
        let step = self.clone();
        self.spawn(Box::new(move || step.drive()));
    }
}
