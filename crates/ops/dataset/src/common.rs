//! Shared by the dataset ops: arguments, and the kernel that makes a dataset.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices;
use ferroflow_opdef::{AttrValue, Attrs, KernelBuild, KernelCtx, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    CapturedFunction, Components, Dataset, DatasetIterator, DatasetNode, INFINITE, Source, UNKNOWN,
};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::sync::Arc;

/// An iterator over an input; `None` at its end.
pub(crate) type Input = Option<Box<dyn DatasetIterator>>;

/// A dataset's source.
pub(crate) type Made = Result<Arc<dyn Source>>;

/// The types of a dataset's elements.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) dtypes: Vec<DType>,
    pub(crate) shapes: Vec<PartialShape>,
}

impl Spec {
    pub(crate) fn new(dtypes: Vec<DType>, shapes: Vec<PartialShape>) -> Spec {
        Spec { dtypes, shapes }
    }

    /// The types in the attrs `output_types` and `output_shapes`.
    fn of(attrs: &Attrs) -> Result<Spec> {
        let dtypes = attrs
            .dtypes("output_types")
            .or_else(|_| attrs.dtypes("Toutput_types"))?;
        Ok(Spec::new(dtypes, attrs.shapes("output_shapes")?))
    }

    /// The types of strings, one in each element.
    pub(crate) fn of_strings() -> Spec {
        Spec::new(vec![DType::String], vec![PartialShape::scalar()])
    }

    /// The attrs of a node whose dataset has these types.
    pub(crate) fn attrs(&self) -> Attrs {
        let dtypes = self.dtypes.iter().map(|t| AttrValue::Type(*t));
        let shapes = self.shapes.iter().map(|s| AttrValue::Shape(s.clone()));
        Attrs::default()
            .with("output_types", AttrValue::List(dtypes.collect()))
            .with("output_shapes", AttrValue::List(shapes.collect()))
    }

    /// A dataset of these types.
    pub(crate) fn dataset(&self, source: Arc<dyn Source>, node: DatasetNode) -> Arc<Dataset> {
        Arc::new(Dataset {
            source,
            dtypes: self.dtypes.clone(),
            shapes: self.shapes.clone(),
            node,
        })
    }
}

/// Returns the next element of an input, which is dropped at its end.
pub(crate) fn next_of(input: &mut Input, services: &StepServices) -> Result<Option<Components>> {
    let Some(iterator) = input else {
        return Ok(None);
    };
    let next = iterator.next(services)?;
    if next.is_none() {
        *input = None;
    }
    Ok(next)
}

/// Skips elements of an input, which is dropped at its end; returns how many there were.
pub(crate) fn skip_of(input: &mut Input, n: u64, services: &StepServices) -> Result<u64> {
    let Some(iterator) = input else {
        return Ok(0);
    };
    let skipped = iterator.skip(n, services)?;
    if skipped < n {
        *input = None;
    }
    Ok(skipped)
}

/// Returns the scalar integer in input `i`.
pub(crate) fn number(ctx: &KernelCtx, i: usize, name: &str) -> Result<i64> {
    let t = ctx.input(i)?;
    match indices::int(t).filter(|_| t.shape().is_scalar()) {
        Some(n) => Ok(n),
        None => Err(invalid_argument!("{name} must be a scalar")),
    }
}

/// Returns the scalar bool in input `i`.
pub(crate) fn flag(ctx: &KernelCtx, i: usize, name: &str) -> Result<bool> {
    let t = ctx.input(i)?;
    match t.shape().is_scalar() {
        true => t.to_scalar(),
        false => Err(invalid_argument!("{name} must be a scalar")),
    }
}

/// Returns the scalar string in input `i`.
pub(crate) fn text(ctx: &KernelCtx, i: usize, name: &str) -> Result<String> {
    let t = ctx.input(i)?;
    match t.strings()? {
        [text] if t.shape().is_scalar() => match std::str::from_utf8(text) {
            Ok(text) => Ok(text.to_string()),
            Err(_) => Err(invalid_argument!("{name} must be valid UTF-8")),
        },
        _ => Err(invalid_argument!("{name} must be a scalar")),
    }
}

/// Returns the scalar integer in input `i`, which must be positive.
pub(crate) fn positive(ctx: &KernelCtx, i: usize, name: &str, problem: &str) -> Result<usize> {
    let n = number(ctx, i, name)?;
    let n = usize::try_from(n).ok().filter(|&n| n > 0);
    n.ok_or_else(|| invalid_argument!("{problem}"))
}

/// Returns the batch size in input `i`.
pub(crate) fn batch_size(ctx: &KernelCtx, i: usize) -> Result<usize> {
    let problem = "Batch size must be greater than zero.";
    positive(ctx, i, "batch_size", problem)
}

/// Returns the number of parallel calls in input `i`; `None` leaves it to the engine.
pub(crate) fn parallel_calls(ctx: &KernelCtx, i: usize) -> Result<Option<usize>> {
    match number(ctx, i, "num_parallel_calls")? {
        -1 => Ok(None),
        n => match usize::try_from(n) {
            Ok(n) if n > 0 => Ok(Some(n)),
            _ => Err(invalid_argument!(
                "num_parallel_calls must be greater than zero."
            )),
        },
    }
}

/// Returns the inputs from `first` on.
pub(crate) fn components(ctx: &KernelCtx, first: usize) -> Result<Components> {
    some(ctx, first, ctx.num_inputs())
}

/// Returns the inputs from `first` to before `end`.
pub(crate) fn some(ctx: &KernelCtx, first: usize, end: usize) -> Result<Components> {
    (first..end).map(|i| ctx.input(i).cloned()).collect()
}

/// Returns the dataset in input `i`.
pub(crate) fn dataset(ctx: &KernelCtx, i: usize) -> Result<Arc<Dataset>> {
    Dataset::of(ctx.input(i)?)
}

/// Returns how many inputs an argument has that holds a list of the types in attr `name`.
pub(crate) fn n_of(build: &KernelBuild, name: &str) -> Result<usize> {
    Ok(build.attrs.list(name)?.len())
}

/// Returns the function of an attr, with inputs it captures.
pub(crate) fn function(
    ctx: &KernelCtx,
    name: &str,
    captured: Components,
) -> Result<CapturedFunction> {
    Ok(CapturedFunction::new(ctx.function(name)?, captured))
}

/// Returns the name of the function in attr `attr`.
pub(crate) fn function_name(build: &KernelBuild, attr: &str) -> Result<String> {
    Ok(build.attrs.func(attr)?.name.clone())
}

/// Returns the product or quotient of a finite cardinality; others stay.
pub(crate) fn scaled(cardinality: i64, f: impl FnOnce(i64) -> i64) -> i64 {
    match cardinality {
        INFINITE | UNKNOWN => cardinality,
        n => f(n),
    }
}

/// Makes the source of a dataset whose elements have these types.
type MakeSource = Box<dyn Fn(&KernelCtx, &Spec) -> Made + Send + Sync>;

/// The kernel of an op that makes a dataset: one type for all of them.
struct Make {
    op: String,
    attrs: Attrs,
    spec: Spec,
    source: MakeSource,
}

impl OpKernel for Make {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let node = DatasetNode {
            op: self.op.clone(),
            attrs: self.attrs.clone(),
            inputs: components(ctx, 0)?,
        };
        let source = (self.source)(ctx, &self.spec)?;
        ctx.set_output(0, self.spec.dataset(source, node).tensor()?)
    }
}

/// Returns the kernel of an op with the attrs `output_types` and `output_shapes`.
pub(crate) fn make(
    build: &KernelBuild,
    source: impl Fn(&KernelCtx, &Spec) -> Made + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    // Boxed first: what follows is not generic.
    let source: MakeSource = Box::new(source);
    kernel_of(build, Spec::of(build.attrs)?, source)
}

/// Returns the kernel of an op whose elements have the types `spec`.
pub(crate) fn make_of(
    build: &KernelBuild,
    spec: Spec,
    source: impl Fn(&KernelCtx, &Spec) -> Made + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    kernel_of(build, spec, Box::new(source))
}

fn kernel_of(build: &KernelBuild, spec: Spec, source: MakeSource) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(Make {
        op: build.def.name.to_string(),
        attrs: build.attrs.clone(),
        spec,
        source,
    }))
}

/// Returns the elements of a vector or scalar of strings, as file names.
pub(crate) fn names(t: &Tensor, what: &str) -> Result<Vec<String>> {
    if t.shape().rank() > 1 {
        return Err(invalid_argument!("`{what}` must be a scalar or a vector."));
    }
    let name = |name: &ferroflow_tensor::Bytes| {
        let name = std::str::from_utf8(name).map(str::to_string);
        name.map_err(|_| invalid_argument!("`{what}` must be valid UTF-8"))
    };
    t.strings()?.iter().map(name).collect()
}

/// Returns a bool attr that some versions of an op lack.
pub(crate) fn flag_attr(build: &KernelBuild, name: &str) -> bool {
    build.attrs.bool(name).unwrap_or(false)
}

/// Whether an op is one of `kinds` in some version.
pub(crate) fn is_any(op: &str, kinds: &[&str]) -> bool {
    let of = |kind: &&str| {
        let rest = op.strip_prefix(*kind);
        rest.is_some_and(|rest| {
            let digits = rest.strip_prefix('V');
            rest.is_empty()
                || digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    kinds.iter().any(of)
}
