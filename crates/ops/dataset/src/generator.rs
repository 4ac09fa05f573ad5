//! Elements and tensors by functions: GeneratorDataset, MapDefun (TensorFlow:
//! `core/kernels/data/{generator_dataset_op,map_defun_op}.cc`).

use crate::common::{components, function, function_name, make, n_of, some};
use ferroflow_base::{Code, Result, invalid_argument, unimplemented_error};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx, StepServices};
use ferroflow_resources::dataset::{CapturedFunction, Components, DatasetIterator, Source, State};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::rows::{joined, prepended, split_first};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "GeneratorDataset",
        "init_func_other_args: list(Tinit_func_args), next_func_other_args: \
         list(Tnext_func_args), finalize_func_other_args: list(Tfinalize_func_args) -> \
         handle: variant | init_func: func; next_func: func; finalize_func: func; \
         Tinit_func_args: list(type) >= 0; Tnext_func_args: list(type) >= 0; \
         Tfinalize_func_args: list(type) >= 0; output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; metadata: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(generator),
    Op::new(
        "MapDefun",
        "arguments: list(Targuments), captured_inputs: list(Tcaptured) -> output: \
         list(output_types) | Targuments: list(type) >= 1; Tcaptured: list(type) >= 0 = []; \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; f: func; \
         max_intra_op_parallelism: int = 1",
    )
    .shape(mapped_shapes)
    .kernel(map_defun),
];

struct Generator {
    init: CapturedFunction,
    next: CapturedFunction,
    finalize: CapturedFunction,
}

struct GeneratorIterator {
    source: Arc<Generator>,
    state: Option<Components>,
    has_ended: bool,
}

fn generator(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let names = [
        function_name(build, "init_func")?,
        function_name(build, "next_func")?,
        function_name(build, "finalize_func")?,
    ];
    let n_init = n_of(build, "Tinit_func_args")?;
    let n_next = n_of(build, "Tnext_func_args")?;
    make(build, move |ctx, _| {
        let (init, next) = (n_init, n_init + n_next);
        Ok(Arc::new(Generator {
            init: function(ctx, &names[0], some(ctx, 0, init)?)?,
            next: function(ctx, &names[1], some(ctx, init, next)?)?,
            finalize: function(ctx, &names[2], components(ctx, next)?)?,
        }))
    })
}

impl Source for Generator {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(GeneratorIterator {
            source: self,
            state: None,
            has_ended: false,
        }))
    }
}

impl DatasetIterator for GeneratorIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let state = match &self.state {
            Some(state) => state.clone(),
            None => {
                let made = self.source.init.call(Vec::new(), services)?;
                self.state.insert(made).clone()
            }
        };
        if self.has_ended {
            return Ok(None);
        }
        match self.source.next.call(state.clone(), services) {
            Ok(element) => Ok(Some(element)),
            // The function's way to end the sequence.
            Err(e) if e.code() == Code::OutOfRange => {
                self.source.finalize.call(state, services)?;
                self.has_ended = true;
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn state(&mut self, _: &mut State) -> Result<()> {
        Err(unimplemented_error!(
            "GeneratorDataset does not support checkpointing."
        ))
    }
}

fn mapped_shapes(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.input(0).dim(0);
    for (i, shape) in ctx.attrs().shapes("output_shapes")?.into_iter().enumerate() {
        let whole = match shape.dims() {
            Some(dims) => PartialShape::of(std::iter::once(n).chain(dims.iter().copied())),
            None => PartialShape::unknown(),
        };
        ctx.set(i, whole);
    }
    Ok(())
}

fn map_defun(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = function_name(build, "f")?;
    let n_args = n_of(build, "Targuments")?;
    let dtypes = build.outputs.to_vec();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let function = function(ctx, &name, components(ctx, n_args)?)?;
        let args = some(ctx, 0, n_args)?;
        let mut n = None;
        for (i, arg) in args.iter().enumerate() {
            let Some(&rows) = arg.shape().dims().first() else {
                return Err(invalid_argument!(
                    "All inputs must have rank at least 1. Input {i} has a rank of 0."
                ));
            };
            let first = *n.get_or_insert(rows);
            if rows != first {
                return Err(invalid_argument!(
                    "All inputs must have the same dimension 0. Input {i} has leading dimension \
                     {rows}, while all previous inputs have leading dimension {first}"
                ));
            }
        }
        let rows = mapped_rows(&function, &args, n.unwrap_or(0), ctx.services())?;
        for (i, &dtype) in dtypes.iter().enumerate() {
            let whole = stacked(&rows, i, dtype)?;
            ctx.set_output(i, whole)?;
        }
        Ok(())
    }))
}

/// Calls a function on each row of the arguments, several at a time.
fn mapped_rows(
    function: &CapturedFunction,
    args: &[Tensor],
    n: usize,
    services: &StepServices,
) -> Result<Vec<Components>> {
    let call = |i: usize| -> Result<Components> {
        services.cancel.check()?;
        let row = |t: &Tensor| -> Result<Tensor> {
            let (_, row) = split_first(t.shape())?;
            t.view(i * row.num_elements(), row)
        };
        function.call(args.iter().map(row).collect::<Result<_>>()?, services)
    };
    let results: Vec<Mutex<Option<Result<Components>>>> =
        (0..n).map(|_| Mutex::default()).collect();
    let par: &dyn Parallelism = services.par;
    par.run_blocks(n, &|i| {
        let result = call(i);
        if let Some(slot) = results.get(i) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        }
    });
    let taken = results.into_iter().map(|slot| {
        let result = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
        result.unwrap_or_else(|| Ok(Vec::new()))
    });
    taken.collect()
}

/// Stacks one result of all rows.
fn stacked(rows: &[Components], i: usize, dtype: DType) -> Result<Tensor> {
    let items: Vec<&Tensor> = rows.iter().filter_map(|row| row.get(i)).collect();
    let shape = items.first().map(|t| t.shape().clone()).unwrap_or_default();
    if let Some(other) = items.iter().find(|t| *t.shape() != shape) {
        return Err(invalid_argument!(
            "Mismatch in function retval shape, {shape}, and expected output shape, {}.",
            other.shape()
        ));
    }
    let n = shape.num_elements();
    let parts: Vec<_> = items.iter().map(|&t| (Some(t), n)).collect();
    joined(dtype, prepended(items.len(), &shape)?, &parts)
}
