//! Linear models by stochastic dual coordinate ascent (TensorFlow: `core/kernels/sdca_ops.cc`, `sdca_internal.cc`).

use crate::sdca_examples::{Examples, Groups, Model, Regularization};
use crate::sdca_losses::{Loss, Seen};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::hash::fingerprint128;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::resource::{value_mut, variable};
use ferroflow_tensor::{DType, PartialShape, Tensor};

macro_rules! optimizer {
    ($name:literal, $adaptive:literal) => {
        Op::new(
            $name,
            concat!(
                "sparse_example_indices: num_sparse_features*int64, sparse_feature_indices: \
                 num_sparse_features*int64, sparse_feature_values: \
                 num_sparse_features_with_values*float, dense_features: num_dense_features*float, \
                 example_weights: float, example_labels: float, sparse_indices: \
                 num_sparse_features*int64, sparse_weights: num_sparse_features*float, \
                 dense_weights: num_dense_features*float, example_state_data: float -> \
                 out_example_state_data: float, out_delta_sparse_weights: \
                 num_sparse_features*float, out_delta_dense_weights: num_dense_features*float | \
                 loss_type: string {'logistic_loss','squared_loss','hinge_loss',\
                 'smooth_hinge_loss','poisson_loss'}; ",
                $adaptive,
                ": bool = false; num_sparse_features: int >= 0; num_sparse_features_with_values: \
                 int >= 0; num_dense_features: int >= 0; l1: float; l2: float; \
                 num_loss_partitions: int >= 1; num_inner_iterations: int >= 1"
            ),
        )
        .shape(optimizer_shape)
        .cost(Cost::Expensive)
        .kernel(|build| optimizer(build, $adaptive))
        .not_differentiable()
    };
}

/// SdcaOptimizer, SdcaOptimizerV2, _SdcaShrinkL1, SdcaFprint.
pub(crate) const OPS: &[Op] = &[
    optimizer!("SdcaOptimizer", "adaptative"),
    optimizer!("SdcaOptimizerV2", "adaptive"),
    Op::new(
        "SdcaShrinkL1",
        "weights: Ref(num_features*float) -> | num_features: int >= 0; l1: float; l2: float",
    )
    .not_differentiable(),
    // SdcaShrinkL1 where references have become handles.
    Op::new(
        "_SdcaShrinkL1",
        "weights: num_features*resource -> | num_features: int >= 0; l1: float; l2: float | \
         stateful",
    )
    .kernel(shrink)
    .not_differentiable(),
    Op::new("SdcaFprint", "input: string -> output: int64")
        .shape(|ctx| {
            let input = ctx.with_rank(0, 1)?;
            ctx.set(0, PartialShape::of([input.dim(0), Some(2)]));
            Ok(())
        })
        .kernel(|_| Ok(Box::new(fingerprints)))
        .not_differentiable(),
];

fn optimizer_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let groups = Groups::of(ctx.attrs())?;
    ctx.set(0, PartialShape::of([None, Some(4)]));
    for i in 0..groups.n_sparse + groups.n_dense {
        let shape = ctx.input(groups.sparse_weights() + i);
        ctx.set(1 + i, shape);
    }
    Ok(())
}

fn optimizer(build: &KernelBuild, adaptive: &str) -> Result<Box<dyn OpKernel>> {
    let groups = Groups::of(build.attrs)?;
    if groups.n_sparse + groups.n_dense == 0 {
        return Err(invalid_argument!("Requires at least one feature to train."));
    }
    let loss = Loss::of(build.attrs.str("loss_type")?)?;
    let adaptive = build.attrs.bool(adaptive)?;
    let regularization = Regularization::of(build.attrs)?;
    let partitions = build.attrs.int("num_loss_partitions")? as f64;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let mut model = Model::of(ctx, groups)?;
        let examples = Examples::of(ctx, groups, &model)?;
        let state = ctx.input(groups.state())?;
        if state.shape().rank() != 2 {
            return Err(invalid_argument!(
                "example_state_data must be rank 2 but is rank {}",
                state.shape().rank()
            ));
        }
        let n = examples.len();
        if state.shape().dims() != [n, 4] {
            return Err(invalid_argument!(
                "Expected shape [{n},4] for example_state_data, got {}",
                state.shape()
            ));
        }
        let mut new_state = ctx.alloc(DType::Float, state.shape().clone())?;
        let rows = new_state.slice_mut::<f32>()?;
        rows.copy_from_slice(state.slice::<f32>()?);
        let order = match adaptive {
            true => examples.sampled(|i, example| {
                let seen = examples.statistics(&model, &regularization, i, partitions);
                let label = loss.label(example.label).unwrap_or(example.label);
                let derivative = loss.derivative(seen.wx, f64::from(label));
                let kappa = f64::from(rows[i * 4]) + derivative;
                let norm = example.squared_norm + regularization.l2() * loss.smoothness();
                f64::from(example.weight) * norm.sqrt() * kappa.abs()
            }),
            false => examples.shuffled(),
        };
        for i in order {
            let example = examples.get(i);
            let row = &mut rows[i * 4..][..4];
            let (weight, dual) = (f64::from(example.weight), f64::from(row[0]));
            let label = f64::from(loss.label(example.label)?);
            let seen = examples.statistics(&model, &regularization, i, partitions);
            let new_dual = loss.updated_dual(Seen {
                partitions,
                label,
                weight,
                dual,
                wx: seen.wx,
                norm: seen.norm,
            });
            let delta = (new_dual - dual) * weight / regularization.l2();
            examples.update(&mut model, i, delta);
            row[0] = new_dual as f32;
            row[1] = loss.primal_loss(seen.previous_wx, label, weight) as f32;
            row[2] = loss.dual_loss(dual, label, weight) as f32;
            row[3] = example.weight;
        }
        ctx.set_output(0, new_state)?;
        for (i, deltas) in model.into_deltas().into_iter().enumerate() {
            let shape = ctx.shape(groups.sparse_weights() + i)?.clone();
            let mut out = ctx.alloc(DType::Float, shape)?;
            out.slice_mut::<f32>()?.copy_from_slice(&deltas);
            ctx.set_output(1 + i, out)?;
        }
        Ok(())
    }))
}

fn shrink(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let regularization = Regularization::of(build.attrs)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        for i in 0..ctx.num_inputs() {
            let weights = variable(ctx, i)?;
            let mut value = weights.write();
            let value = value_mut(ctx, i, &mut value, DType::Float)?;
            for w in value.slice_mut::<f32>()? {
                *w = regularization.shrunk_f32(*w);
            }
        }
        Ok(())
    }))
}

fn fingerprints(ctx: &mut KernelCtx) -> Result<()> {
    let input = ctx.input(0)?;
    if input.shape().rank() != 1 {
        return Err(invalid_argument!(
            "Input must be a vector, got shape {}",
            input.shape()
        ));
    }
    let strings = input.strings()?;
    let both = strings.iter().flat_map(|s| {
        let [low, high] = fingerprint128(s);
        // 0 and 1 are left to markers of tables.
        let low = if low >= 2 { low } else { low.wrapping_add(!1) };
        [low as i64, high as i64]
    });
    let both: Vec<i64> = both.collect();
    let n = strings.len();
    let out = Tensor::from_slice([n, 2], &both)?;
    ctx.set_output(0, out)
}
