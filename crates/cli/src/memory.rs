//! `ferroflow inspect --memory`: the memory of a step's tensors.

use crate::model::{Model, RunArgs};
use crate::out::say;
use ferroflow_base::invalid_argument;
use ferroflow_runtime::{
    BlockUse, DType, MemoryUse, PartialShape, Result, RunOptions, Shape, Tensor,
};
use std::cell::Cell;

/// Most blocks that are listed.
const MAX_LISTED: usize = 12;

/// Runs two steps, the first of which is recorded, and prints what is known about their memory.
pub fn show(model: &Model, run: &RunArgs) -> Result<()> {
    let is_made_up = Cell::new(false);
    let made_up = |name: &str, dtype, shape: &PartialShape| {
        is_made_up.set(true);
        zeros(name, dtype, shape)
    };
    let request = run.request_or(model, Some(&made_up))?;
    let session = model.session();
    let callable = session.callable(&request.signature)?;
    for _ in 0..2 {
        let step = session.run_callable(&callable, request.args.clone(), &RunOptions::default());
        step.map_err(|e| match is_made_up.get() {
            true => e.note(
                "--memory runs a step: feed inputs that cannot be zeros with --feed or --feeds",
            ),
            false => e,
        })?;
    }
    let parts = callable.memory();
    if parts.is_empty() {
        return Err(invalid_argument!(
            "all nodes run on devices, which have memory of their own"
        ));
    }
    parts.iter().for_each(show_part);
    Ok(())
}

/// Returns zeros for an input, with 1 for unknown dimensions.
fn zeros(name: &str, dtype: DType, shape: &PartialShape) -> Result<Tensor> {
    let Some(dims) = shape.dims() else {
        return Err(invalid_argument!(
            "--memory runs a step, and the model does not say how many dimensions '{name}' has: feed it \
             with --feed or --feeds"
        ));
    };
    let dims: Vec<usize> = dims.iter().map(|d| d.unwrap_or(1)).collect();
    Tensor::zeros(dtype, Shape::from(&dims[..]))
}

/// Returns bytes as text.
fn size(bytes: usize) -> String {
    match bytes {
        ..100_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.2} MB", bytes as f64 / 1e6),
    }
}

fn sum<'a>(blocks: impl Iterator<Item = &'a BlockUse>) -> usize {
    blocks.map(|b| b.bytes).sum()
}

fn show_part(memory: &MemoryUse) {
    let args = memory.args.iter();
    let args: Vec<String> = args
        .map(|(dtype, shape)| format!("{}{shape}", dtype.numpy_name()))
        .collect();
    say!("memory of a step with {}:", args.join(", "));
    let (planned, others): (Vec<_>, Vec<_>) =
        memory.blocks.iter().partition(|b| b.offset.is_some());
    let without_reuse = sum(planned.iter().copied());
    let arena = size(memory.arena_bytes);
    say!(
        "  planned peak    {arena:>10}  an arena for {} blocks",
        planned.len()
    );
    say!("  without reuse   {:>10}", size(without_reuse));
    let least = size(memory.least_bytes);
    say!("  lower bound     {least:>10}  alive at once");
    let order = match memory.in_any_order {
        true => "any",
        false => "recorded",
    };
    say!("  order           {order:>10}  of nodes, for which no places overlap");
    let (n, bytes) = (
        memory.shared.len(),
        memory.shared.iter().map(|s| s.bytes).sum(),
    );
    say!(
        "  in place        {:>10}  {n} outputs in the block of an input",
        size(bytes)
    );
    let kept = sum(others.iter().copied());
    let n = others.len();
    say!(
        "  on the heap     {:>10}  {n} blocks that outlive the step, such as fetches",
        size(kept)
    );
    let misses = memory.misses;
    say!("  not as planned  {misses:>10}  blocks of the second step");
    let is_alive = |b: &&&BlockUse| b.from <= memory.peak && b.to.is_none_or(|to| memory.peak < to);
    let mut alive: Vec<&&BlockUse> = planned.iter().filter(is_alive).collect();
    let Some(last) = alive.iter().max_by_key(|b| b.from) else {
        return;
    };
    say!(
        "most are alive while {} ({}) runs:",
        last.node.0,
        last.node.1
    );
    alive.sort_by_key(|b| std::cmp::Reverse(b.bytes));
    for block in alive.iter().take(MAX_LISTED) {
        let at = block.offset.unwrap_or(0);
        say!(
            "  {:>10} at {at:<10} {}  {}",
            size(block.bytes),
            block.node.0,
            block.node.1
        );
    }
    if let Some(rest) = alive.get(MAX_LISTED..).filter(|rest| !rest.is_empty()) {
        let bytes = sum(rest.iter().map(|b| **b));
        say!("  {:>10} in {} smaller ones", size(bytes), rest.len());
    }
}
