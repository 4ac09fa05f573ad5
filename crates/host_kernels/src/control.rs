//! Control flow as kernels: calls, branches, loops, chains.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{
    ExecutionContext, Frame, Function, KernelCost, KernelFrame, KernelRegistry, Values,
};
use ferroflow_sync::{AsyncValue, Chain, IndirectPromise};
use std::sync::{Mutex, PoisonError};

/// Concurrent iterations if the program does not specify them, as in TFRT.
const PIPELINE: u64 = 32;

/// Forwards each promise to its result.
pub(super) fn forward_all(promises: Vec<IndirectPromise>, values: Values) {
    for (promise, value) in promises.into_iter().zip(values) {
        promise.forward_to(value);
    }
}

fn fail_all(promises: Vec<IndirectPromise>, error: &AsyncValue) {
    for promise in promises {
        promise.forward_to(error.clone());
    }
}

/// Returns the first unavailable value, if any.
fn late(values: &[AsyncValue]) -> Option<AsyncValue> {
    values.iter().find(|v| !v.is_available()).cloned()
}

fn call(frame: &mut KernelFrame) -> Result<()> {
    let function = frame.function_ref(0)?;
    function.check_arity(frame.n_args(), frame.n_results())?;
    let args = frame.take_args();
    let results = function.execute(frame.ctx(), args);
    frame.set_results(results);
    Ok(())
}

/// Calls the function that `choose` selects by the first argument, with the others.
fn branch(
    frame: &mut KernelFrame,
    choose: impl FnOnce(&AsyncValue, usize) -> Result<usize> + Send + 'static,
) -> Result<()> {
    let no_branch = || invalid_argument!("kernel has no such branch");
    let Some(selector) = frame.arg_ref(0) else {
        return Err(invalid_argument!("kernel has no condition"));
    };
    let n_args = frame.n_args().saturating_sub(1);
    if selector.is_concrete() {
        let index = choose(selector, frame.n_functions())?;
        let function = frame.function_ref(index).map_err(|_| no_branch())?;
        function.check_arity(n_args, frame.n_results())?;
        let args = frame.take_args_from(1);
        let results = function.execute(frame.ctx(), args);
        frame.set_results(results);
        return Ok(());
    }
    let selector = selector.clone();
    if selector.is_error() {
        frame.fail(&selector);
        return Ok(());
    }
    let mut branches = Vec::<Function>::new();
    for i in 0..frame.n_functions() {
        let function = frame.function_ref(i)?;
        function.check_arity(n_args, frame.n_results())?;
        branches.push(function.to_owned());
    }
    let (args, promises) = (frame.take_args_from(1), frame.allocate_all());
    let (ctx, reporter) = (frame.ctx().clone(), frame.reporter());
    let condition = selector.clone();
    condition.and_then(move || {
        if selector.is_error() {
            return fail_all(promises, &selector);
        }
        let chosen = choose(&selector, branches.len())
            .and_then(|index| branches.get(index).ok_or_else(no_branch));
        match chosen {
            Ok(function) => forward_all(promises, function.execute(&ctx, args)),
            Err(status) => fail_all(promises, &AsyncValue::new_error(reporter.report(status))),
        }
    });
    Ok(())
}

fn if_kernel(frame: &mut KernelFrame) -> Result<()> {
    // The first branch is the one for true.
    branch(frame, |condition, _| {
        Ok(usize::from(!condition.expect::<bool>()?))
    })
}

fn case(frame: &mut KernelFrame) -> Result<()> {
    branch(frame, |index, n_branches| {
        // An index out of range selects the last branch.
        let last = n_branches.saturating_sub(1);
        let index = usize::try_from(*index.expect::<i32>()?).unwrap_or(last);
        Ok(index.min(last))
    })
}

struct Loop {
    ctx: ExecutionContext,
    body: Function,
    promises: Vec<IndirectPromise>,
}

/// Runs iterations from `at` on. Not recursive: an iteration that waits for values continues later.
fn repeat_from(this: Loop, mut at: u64, count: u64, mut args: Values) {
    while at < count {
        if at > 0
            && at.is_multiple_of(PIPELINE)
            && let Some(late) = late(&args)
        {
            return late.and_then(move || repeat_from(this, at, count, args));
        }
        if let Some(cancelled) = this.ctx.cancel_value() {
            return fail_all(this.promises, cancelled);
        }
        args = this.body.execute(&this.ctx, args);
        at += 1;
    }
    forward_all(this.promises, args);
}

fn repeat(frame: &mut KernelFrame) -> Result<()> {
    let body = frame.function(0)?;
    let n_values = frame.n_args().saturating_sub(1);
    body.check_arity(n_values, n_values)?;
    if frame.n_results() != n_values {
        return Err(invalid_argument!(
            "tfrt.repeat.i32 must return what it takes"
        ));
    }
    let count = frame.arg_value(0)?;
    let args = frame.take_args_from(1);
    let this = Loop {
        ctx: frame.ctx().clone(),
        body,
        promises: frame.allocate_all(),
    };
    let reporter = frame.reporter();
    let available = count.clone();
    available.and_then(move || match count.get::<i32>() {
        Some(n) => repeat_from(this, 0, u64::try_from(*n).unwrap_or(0), args),
        None if count.is_error() => fail_all(this.promises, &count),
        None => {
            let status = invalid_argument!("the trip count of tfrt.repeat.i32 is not an i32");
            fail_all(
                this.promises,
                &AsyncValue::new_error(reporter.report(status)),
            );
        }
    });
    Ok(())
}

/// Iterates while `condition` is true, with at most `limit` concurrent iterations; the body's last
/// result is the next condition.
fn while_from(this: Loop, mut at: u64, limit: u64, mut condition: AsyncValue, mut args: Values) {
    loop {
        if at.is_multiple_of(limit)
            && at > 0
            && let Some(late) = late(&args)
        {
            return late.and_then(move || while_from(this, at, limit, condition, args));
        }
        at += 1;
        if let Some(cancelled) = this.ctx.cancel_value() {
            return fail_all(this.promises, cancelled);
        }
        if !condition.is_available() {
            let waiting = condition.clone();
            return waiting.and_then(move || while_from(this, at - 1, limit, condition, args));
        }
        match condition.get::<bool>() {
            Some(true) => {}
            Some(false) => return forward_all(this.promises, args),
            None if condition.is_error() => return fail_all(this.promises, &condition),
            None => {
                let status = invalid_argument!("the condition of tfrt.while is not an i1");
                return fail_all(this.promises, &AsyncValue::new_error(status));
            }
        }
        args = this.body.execute(&this.ctx, args);
        match args.pop() {
            Some(next) => condition = next,
            None => return,
        }
    }
}

fn while_kernel(frame: &mut KernelFrame) -> Result<()> {
    let body = frame.function(0)?;
    let n_values = frame.n_args().saturating_sub(1);
    body.check_arity(n_values, n_values + 1)?;
    if frame.n_results() != n_values {
        return Err(invalid_argument!("tfrt.while must return what it takes"));
    }
    let limit = match frame.n_attributes() {
        0 => PIPELINE,
        _ => u64::try_from(frame.attribute(0)?.number::<i64>()?.max(1)).unwrap_or(PIPELINE),
    };
    let condition = frame.arg_value(0)?;
    let args = frame.take_args_from(1);
    let this = Loop {
        ctx: frame.ctx().clone(),
        body,
        promises: frame.allocate_all(),
    };
    while_from(this, 0, limit, condition, args);
    Ok(())
}

/// The results of a function that is called once; `None` before the first call.
type Once = Mutex<Option<Values>>;

fn once(frame: &mut KernelFrame) -> Result<()> {
    let function = frame.function(0)?;
    function.check_arity(frame.n_args(), frame.n_results())?;
    let name = format!("tfrt.once {}", function.name());
    let slot = frame
        .ctx()
        .resource(&name, Once::default)
        .ok_or_else(|| invalid_argument!("resource '{name}' is of another type"))?;
    // The first call does not block others, which it may need: they get results that are set later.
    let promises = {
        let mut results = slot.lock().unwrap_or_else(PoisonError::into_inner);
        match &*results {
            Some(results) => {
                frame.set_results(results.clone());
                return Ok(());
            }
            None => {
                let pairs = (0..frame.n_results()).map(|_| IndirectPromise::new());
                let (promises, values): (Vec<_>, Vec<_>) = pairs.unzip();
                *results = Some(values.into_iter().collect());
                promises
            }
        }
    };
    let args = frame.take_args();
    let results = function.execute(frame.ctx(), args);
    let name = function.name().to_string();
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    let late = slot.replace(results.clone()).unwrap_or_default();
    drop(slot);
    for ((promise, late), result) in promises.into_iter().zip(late).zip(&results) {
        match result.is_same(&late) {
            true => promise.set_error(invalid_argument!("@{name} returns what it is to return")),
            false => promise.forward_to(result.clone()),
        }
    }
    frame.set_results(results);
    Ok(())
}

fn alias(frame: &mut KernelFrame) -> Result<()> {
    let value = frame.arg_value(1)?;
    frame.set_result(0, value);
    Ok(())
}

fn merge_chains(frame: &mut KernelFrame) -> Result<()> {
    let chain = frame.arg_value(0)?;
    frame.set_result(0, chain);
    Ok(())
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry
        .with_cost(KernelCost::Inexpensive, |r| {
            r.add_raw("tfrt.merge.chains", merge_chains)
                .add_raw("tfrt.alias.value", alias)
                .add("tfrt.new.chain", || Chain);
        })
        .with_cost(KernelCost::Callees, |r| {
            r.add_raw("tfrt.call", call)
                .add_raw("tfrt.cond", if_kernel)
                .add_raw("tfrt.if", if_kernel)
                .add_raw("tfrt.case", case);
        })
        .add_raw("tfrt.while", while_kernel)
        .add_raw("tfrt.repeat.i32", repeat)
        .add_raw("tfrt.once", once);
}
