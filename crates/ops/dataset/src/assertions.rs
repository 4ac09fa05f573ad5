//! AssertNextDataset and AssertPrevDataset: iterators of other chains of datasets than the asserted ones are
//! refused (TensorFlow: `core/kernels/data/experimental/assert_{next,prev}_dataset_op.cc`).
//!
//! Datasets run as they were written. TensorFlow's optimizer may rewrite them; where it would run, what is asserted
//! of the next datasets is believed if there are such datasets.

use crate::common::{dataset, is_any, make};
use crate::options::{checked, collect_options, through_of};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::{indices, shapes};
use ferroflow_model::proto::{NameAttrList, attr_value::Value};
use ferroflow_opdef::{AttrValue, KernelBuild, Op, OpKernel};
use ferroflow_resources::dataset::Dataset;
use ferroflow_tensor::Tensor;
use prost::Message;
use prost::encoding::decode_varint;
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "AssertNextDataset",
        "input_dataset: variant, transformations: string -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(assert_next),
    Op::new(
        "ExperimentalAssertNextDataset",
        "input_dataset: variant, transformations: string -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(assert_next),
    Op::new(
        "AssertPrevDataset",
        "input_dataset: variant, transformations: string -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(assert_previous),
];

fn assert_next(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        crate::common::names(ctx.input(1)?, "transformations")?;
        Ok(through_of(dataset(ctx, 0)?))
    })
}

fn assert_previous(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let asserted = crate::common::names(ctx.input(1)?, "transformations")?;
        Ok(checked(dataset(ctx, 0)?, move |input| {
            check_all_previous(input, &asserted)
        }))
    })
}

/// Checks a dataset and those before it.
fn check_all_previous(input: &Arc<Dataset>, asserted: &[String]) -> Result<()> {
    let mut before = Some(input.clone());
    for (i, wanted) in asserted.iter().enumerate() {
        let Some(found) = before else {
            return Err(invalid_argument!(
                "Asserted previous {} transformations but encountered only {i}.",
                asserted.len()
            ));
        };
        check_previous(&found, wanted).map_err(|e| {
            let at = format!("Failure checking transformations at offset {i}: ");
            e.prefixed(&at)
        })?;
        before = found.source.inputs().pop();
    }
    Ok(())
}

/// Checks a dataset against a NameAttrList in text form.
fn check_previous(found: &Dataset, wanted: &str) -> Result<()> {
    let parsed = ferroflow_model::message_from_text("tensorflow.NameAttrList", wanted).ok();
    let parsed = parsed.and_then(|bytes| NameAttrList::decode(&bytes[..]).ok());
    let Some(wanted) = parsed else {
        return Err(invalid_argument!(
            "Couldn't parse transformation '{wanted}'."
        ));
    };
    if !is_any(&found.node.op, &[&wanted.name]) {
        return Err(invalid_argument!(
            "Asserted transformation matching '{}', but found '{}'.",
            wanted.name,
            found.node.op
        ));
    }
    for (name, value) in &wanted.attr {
        let value = value.value.as_ref();
        let shown = value.map_or(String::new(), |v| format!("{v:?}"));
        let Some(own) = found.node.attrs.get(name) else {
            return Err(invalid_argument!(
                "Asserted attribute '{name}' having a value of '{shown}', but found no such attribute \
                 defined."
            ));
        };
        let is_same = match (own, value) {
            (AttrValue::Str(a), Some(Value::S(b))) => a[..] == b[..],
            (AttrValue::Int(a), Some(Value::I(b))) => a == b,
            (AttrValue::Bool(a), Some(Value::B(b))) => a == b,
            _ => false,
        };
        if !is_same {
            return Err(invalid_argument!(
                "Asserted attribute '{name}' having a value of '{shown}', but found value of '{own:?}'."
            ));
        }
    }
    Ok(())
}

/// The part of `tensorflow.data.Options` that says whether TensorFlow would rewrite a dataset.
#[derive(Clone, PartialEq, prost::Message)]
struct Options {
    /// Messages of type OptimizationOptions, whose fields are all bools.
    #[prost(bytes = "vec", repeated, tag = "3")]
    optimization: Vec<Vec<u8>>,
}

impl Options {
    /// Whether the default optimizations are off, and no other one is on.
    fn is_off(&self) -> bool {
        const DEFAULT_OPTIMIZATIONS: u64 = 1 << 3;
        let mut is_off = false;
        for message in &self.optimization {
            let mut rest = &message[..];
            while let (Ok(key), Ok(value)) = (decode_varint(&mut rest), decode_varint(&mut rest)) {
                match key {
                    DEFAULT_OPTIMIZATIONS => is_off = value == 0,
                    _ if value != 0 => return false,
                    _ => {}
                }
            }
        }
        is_off
    }
}

/// Checks what the datasets below `root` assert of those that follow them.
///
/// # Errors
/// INVALID_ARGUMENT if another one follows, or too few.
pub(crate) fn check_next(root: &Dataset) -> Result<()> {
    let mut all = Vec::new();
    collect_options(root, &mut all);
    let is_off = Options::decode(&all[..]).is_ok_and(|options| options.is_off());
    check_below(root, &mut vec!["Root".to_string()], !is_off)
}

/// Datasets that iterators are not made of.
const UNSEEN: [&str; 2] = ["OptionsDataset", "FinalizeDataset"];

fn check_below(dataset: &Dataset, path: &mut Vec<String>, is_rewritten: bool) -> Result<()> {
    let node = &dataset.node;
    if node.op.ends_with("AssertNextDataset")
        && let Some(wanted) = node.inputs.get(1)
    {
        check_path(
            &crate::common::names(wanted, "transformations")?,
            path,
            is_rewritten,
        )?;
    }
    let is_seen = !node.op.is_empty() && !UNSEEN.contains(&&node.op[..]);
    if is_seen {
        path.push(iterator_kind(dataset));
    }
    for input in dataset.source.inputs() {
        check_below(&input, path, is_rewritten)?;
    }
    if is_seen {
        path.pop();
    }
    Ok(())
}

const MEMORY_CACHE: &str = "MemoryCacheImpl";
const FILE_CACHE: &str = "FileCacheImpl";
/// Kinds of iterators with other names than their datasets.
const RENAMED: [&str; 9] = [
    "Root",
    MEMORY_CACHE,
    FILE_CACHE,
    "EmptyTake",
    "EmptySkip",
    "FiniteTake",
    "FiniteSkip",
    "FiniteRepeat[0]",
    "ForeverRepeat[0]",
];

/// Returns how TensorFlow calls the iterators of a dataset.
fn iterator_kind(dataset: &Dataset) -> String {
    let node = &dataset.node;
    let count = || node.inputs.get(1).and_then(indices::int);
    let name = node.op.replacen("Dataset", "", 1);
    match (&name[..], count()) {
        ("Take" | "Repeat", Some(0)) | ("Skip", Some(..0)) => format!("Empty{name}"),
        ("Repeat", Some(..0)) => "ForeverRepeat[0]".to_string(),
        ("Repeat", _) => "FiniteRepeat[0]".to_string(),
        ("Take" | "Skip", _) => format!("Finite{name}"),
        ("Cache" | "CacheV2", _) => match node.inputs.get(1).map(Tensor::strings) {
            Some(Ok([file])) if !file.is_empty() => FILE_CACHE.to_string(),
            _ => MEMORY_CACHE.to_string(),
        },
        _ => name,
    }
}

/// Checks assertions about the end of a path of datasets, its last one first.
fn check_path(wanted: &[String], path: &[String], is_rewritten: bool) -> Result<()> {
    if wanted.len() > path.len() && !is_rewritten {
        return Err(invalid_argument!(
            "Asserted next {} transformations but encountered only {}.",
            wanted.len(),
            path.len()
        ));
    }
    for (i, (wanted, found)) in wanted.iter().zip(path.iter().rev()).enumerate() {
        let is_possible = is_rewritten && is_dataset(wanted);
        if !is_possible && !is_any(found, &[wanted]) {
            return Err(invalid_argument!(
                "Asserted transformation matching {wanted} at offset {i} but encountered {found} \
                 transformation instead."
            ));
        }
    }
    Ok(())
}

/// Whether there is an op that makes datasets of this kind.
fn is_dataset(kind: &str) -> bool {
    let ops = crate::ALL.iter().flat_map(|(_, ops)| ops.iter());
    let mut kinds = ops.map(|op| op.name.replacen("Dataset", "", 1));
    kinds.any(|found| is_any(&found, &[kind])) || RENAMED.contains(&kind)
}
