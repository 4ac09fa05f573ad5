//! [`InOrder`]: a function of elements, several at a time between steps, results in order.

use super::background::{Waiter, lock, wait};
use super::{Background, Components, DatasetIterator, State};
use ferroflow_base::{Result, cancelled};
use ferroflow_opdef::StepServices;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

/// Computes the result of an element.
pub type Element =
    Arc<dyn Fn(Components, &StepServices) -> Result<Option<Components>> + Send + Sync>;

/// Calls of one function on the elements of an iterator. A result of `None` ends the sequence.
pub struct InOrder {
    input: Option<Box<dyn DatasetIterator>>,
    function: Element,
    calls: VecDeque<Arc<Call>>,
    /// Calls that are begun at a time; `None` chooses a multiple of the pool's width.
    width: Option<usize>,
    background: Background,
}

struct Call {
    stage: Mutex<Stage>,
    done: Condvar,
}

#[derive(Default)]
enum Stage {
    Waiting(Components),
    Running,
    Done(Result<Option<Components>>),
    #[default]
    Taken,
}

/// Answers a call even if its function panics.
struct Answer<'a>(&'a Call);

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let mut stage = lock(&self.0.stage);
        if matches!(*stage, Stage::Running) {
            *stage = Stage::Done(Err(cancelled!("the function did not return")));
        }
        drop(stage);
        self.0.done.notify_all();
    }
}

impl Call {
    fn new(stage: Stage) -> Arc<Call> {
        Arc::new(Call {
            stage: Mutex::new(stage),
            done: Condvar::new(),
        })
    }

    /// Takes the element of the call if no thread has begun it.
    fn begin(&self) -> Option<Components> {
        let mut stage = lock(&self.stage);
        match std::mem::replace(&mut *stage, Stage::Running) {
            Stage::Waiting(element) => Some(element),
            other => {
                *stage = other;
                None
            }
        }
    }

    /// Runs the call if no thread has begun it.
    fn run(&self, function: &Element, services: &StepServices) {
        let Some(element) = self.begin() else { return };
        let _answer = Answer(self);
        let result = function(element, services);
        *lock(&self.stage) = Stage::Done(result);
    }

    /// As [`Call::run`], for a later step: if this one is cancelled meanwhile, the call waits again.
    fn run_ahead(&self, function: &Element, services: &StepServices) {
        let Some(element) = self.begin() else { return };
        let _answer = Answer(self);
        let result = function(element.clone(), services);
        let is_cut_off = result.is_err() && services.cancel.check().is_err();
        *lock(&self.stage) = match is_cut_off {
            true => Stage::Waiting(element),
            false => Stage::Done(result),
        };
    }

    /// Returns the result; the call must have been begun.
    fn result(&self, services: &StepServices) -> Result<Option<Components>> {
        let mut stage = lock(&self.stage);
        let mut waiter = Waiter::new(services);
        loop {
            match std::mem::take(&mut *stage) {
                Stage::Done(result) => return result,
                other => *stage = other,
            }
            stage = waiter.wait(&self.done, stage)?;
        }
    }

    fn is_done(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Done(_) | Stage::Taken)
    }

    /// Waits until no thread runs it.
    fn settle(&self) {
        let mut stage = lock(&self.stage);
        while matches!(*stage, Stage::Running) {
            stage = wait(&self.done, stage);
        }
    }
}

impl InOrder {
    /// Calls `function` on the elements of `input`, `width` at a time.
    pub fn new(
        input: Box<dyn DatasetIterator>,
        function: Element,
        width: Option<usize>,
    ) -> InOrder {
        InOrder {
            input: Some(input),
            function,
            calls: VecDeque::new(),
            width,
            background: Background::default(),
        }
    }

    /// Begins calls until as many run as may.
    fn begin(&mut self, services: &StepServices) {
        let own = Background::width(services);
        let width = match own {
            1 => 1,
            // Threads go on while an earlier call than theirs is waited for.
            _ => self.width.unwrap_or(2 * own).max(1),
        };
        while self.calls.len() < width
            && let Some(input) = &mut self.input
        {
            match input.next(services) {
                Ok(Some(element)) => {
                    let call = Call::new(Stage::Waiting(element));
                    self.calls.push_back(call.clone());
                    if width > 1
                        && let Some(services) = self.background.services(services)
                    {
                        let function = self.function.clone();
                        services.spawn(move |services| {
                            services.with(|services| call.run(&function, services));
                        });
                    }
                }
                Ok(None) => self.input = None,
                Err(error) => return self.calls.push_back(Call::new(Stage::Done(Err(error)))),
            }
        }
    }
}

impl DatasetIterator for InOrder {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        self.begin(services);
        let Some(call) = self.calls.front() else {
            return Ok(None);
        };
        call.run(&self.function, services);
        // While another thread runs it, this one runs those that wait behind it. They end with this step, which may be
        // the one of a prefetch that is dropped: this iterator is dropped only after it.
        for later in self.calls.iter().skip(1) {
            if call.is_done() || services.cancel.check().is_err() {
                break;
            }
            later.run_ahead(&self.function, services);
        }
        // A step that is cancelled while it waits leaves the call to the next one.
        let result = call.result(services);
        if matches!(*lock(&call.stage), Stage::Taken) {
            self.calls.pop_front();
        }
        if matches!(result, Ok(None)) {
            self.calls.clear();
            self.input = None;
        }
        result
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let mut has_input = self.input.is_some();
        state.flag(&mut has_input)?;
        match (&mut self.input, has_input) {
            (Some(input), true) => input.state(state)?,
            _ => self.input = None,
        }
        let mut stages: Vec<(bool, Components)> = Vec::new();
        for call in &self.calls {
            call.settle();
            match &*lock(&call.stage) {
                Stage::Waiting(element) => stages.push((false, element.clone())),
                Stage::Done(Ok(Some(result))) => stages.push((true, result.clone())),
                _ => {}
            }
        }
        state.list(&mut stages, |state, (is_done, element)| {
            state.flag(is_done)?;
            state.element(element)
        })?;
        if state.is_restoring() {
            let stage = |(is_done, element)| match is_done {
                true => Stage::Done(Ok(Some(element))),
                false => Stage::Waiting(element),
            };
            self.calls = stages.into_iter().map(|s| Call::new(stage(s))).collect();
        }
        Ok(())
    }
}

impl Drop for InOrder {
    fn drop(&mut self) {
        for call in &self.calls {
            let mut stage = lock(&call.stage);
            if matches!(*stage, Stage::Waiting(_)) {
                *stage = Stage::Taken;
            }
        }
    }
}
