//! Reductions of windows.

use super::attrs::{Axis, ints_or, text};
use super::function_ref;
use super::reductions::{is_identity, number, only_op};
use super::scope::{Scope, known_dims, open_dims, typed};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_graph::Output;
use ferroflow_opdef::AttrValue;
use ferroflow_stablehlo::{Block, Op, TensorType, ValueId};
use ferroflow_tensor::{DType, Tensor};

impl Scope<'_, '_> {
    pub(super) fn reduce_window(&mut self, op: &Op) -> Result<()> {
        let [x, init] = op.operands[..] else {
            return Err(unimplemented_error!(
                "windows of several tensors are not implemented"
            ));
        };
        let ty = self.ty(x)?.clone();
        let window = Window::of(op, ty.dims.len())?;
        window.check(&ty, self.result(op)?.1)?;
        let by = op.regions.first().and_then(only_op);
        let first = self.known_scalar(init)?.as_ref().and_then(number);
        if let Some(by) = by.filter(|by| first.is_some_and(|v| is_identity(by, v, ty.dtype)))
            && self.known_window(op, x, &ty, &window, by)?
        {
            return Ok(());
        }
        let function = self.pure_region(op, 0)?;
        let mut inputs = vec![self.full(x)?, self.full(init)?];
        for list in [
            &window.sizes,
            &window.strides,
            &window.base_dilations,
            &window.dilations,
        ] {
            inputs.push(self.ints(list)?);
        }
        inputs.push(self.pairs(&window.pads)?);
        let attrs = typed(ty.dtype)
            .with("Tindices", AttrValue::Type(DType::Int64))
            .with("computation", function_ref(&function));
        let y = self.node("XlaReduceWindow", attrs, &inputs)?;
        self.set(op, y)
    }

    /// Windows whose sizes, steps and padding only the step knows.
    pub(super) fn dynamic_reduce_window(&mut self, op: &Op, function: &str) -> Result<()> {
        let [x, _, sizes, strides, base_dilations, dilations, pads] = op.operands[..] else {
            return Err(unimplemented_error!(
                "windows of several tensors are not implemented"
            ));
        };
        let (dtype, index) = (self.ty(x)?.dtype, self.ty(sizes)?.dtype);
        let mut inputs = vec![self.full(x)?, self.full(op.operands[1])?];
        for id in [sizes, strides, base_dilations, dilations, pads] {
            let of = self.ty(id)?.dtype;
            let list = self.full(id)?;
            inputs.push(self.cast(list, of, index)?);
        }
        let attrs = typed(dtype)
            .with("Tindices", AttrValue::Type(index))
            .with("computation", function_ref(function));
        let y = self.node("XlaReduceWindow", attrs, &inputs)?;
        self.set(op, y)
    }

    /// Padding as a matrix of two columns.
    pub(super) fn pairs(&mut self, pads: &[i64]) -> Result<Output> {
        let pairs = Tensor::vector(pads)?.with_shape([pads.len() / 2, 2].into())?;
        self.constant(pairs)
    }

    /// Windows that TensorFlow has an op for: sums of all elements before each one, and pools.
    fn known_window(
        &mut self,
        op: &Op,
        x: ValueId,
        ty: &TensorType,
        window: &Window,
        by: &str,
    ) -> Result<bool> {
        let cumulative = match by {
            "add" => Some("Cumsum"),
            "multiply" => Some("Cumprod"),
            _ => None,
        };
        if let (Some(name), Some((axis, is_reverse)), false) =
            (cumulative, window.cumulative(ty), ty.dtype == DType::Bool)
        {
            let x = self.full(x)?;
            let axis = self.constant(Tensor::scalar(axis as i32))?;
            let attrs = typed(ty.dtype).with("reverse", AttrValue::Bool(is_reverse));
            let y = self.node(name, attrs, &[x, axis])?;
            self.set(op, y)?;
            return Ok(true);
        }
        // Pools take as long as their windows are large.
        let is_known = matches!(by, "maximum" | "minimum" | "add")
            && ty.dtype.is_floating()
            && window.cumulative(ty).is_none();
        match Pool::of(ty, window) {
            Some(pool) if is_known => {
                let x = self.full(x)?;
                let y = self.pool(x, ty.dtype, &pool, by)?;
                let shape = self.ints(&open_dims(self.result(op)?.1))?;
                let y = self.reshape_to(y, ty.dtype, shape)?;
                self.set(op, y)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// A pool of images, rows or volumes, whose channels are last or all that is before them.
    fn pool(&mut self, x: Output, dtype: DType, pool: &Pool, by: &str) -> Result<Output> {
        let shape = self.ints(&pool.shape)?;
        let mut x = self.reshape_to(x, dtype, shape)?;
        let rank = pool.shape.len();
        // What is before the windows becomes the channels, and back.
        let exchanged: Vec<usize> = [rank - 1]
            .into_iter()
            .chain(1..rank - 1)
            .chain([0])
            .collect();
        if pool.is_turned {
            x = self.transpose(x, dtype, &exchanged)?;
        }
        if by == "minimum" {
            x = self.node("Neg", typed(dtype), &[x])?;
        }
        if pool.pads.iter().any(|p| *p != 0) {
            let pads = self.pairs(&pool.pads)?;
            let edge = if by == "add" { 0.0 } else { f32::NEG_INFINITY };
            let edge = self.constant(Tensor::scalar(edge))?;
            let edge = self.cast(edge, DType::Float, dtype)?;
            let attrs = typed(dtype).with("Tpaddings", AttrValue::Type(DType::Int64));
            x = self.node("PadV2", attrs, &[x, pads, edge])?;
        }
        let attrs = typed(dtype)
            .with("ksize", AttrValue::ints(&pool.sizes))
            .with("strides", AttrValue::ints(&pool.strides))
            .with("padding", AttrValue::str("VALID"));
        let attrs = match by {
            "add" => attrs,
            _ => attrs.with("_or_nan", AttrValue::Bool(true)),
        };
        let name = match (by, rank) {
            ("add", 4) => "AvgPool",
            ("add", _) => "AvgPool3D",
            (_, 4) => "MaxPool",
            _ => "MaxPool3D",
        };
        let mut y = self.node(name, attrs, &[x])?;
        if by == "add" {
            let count = pool.sizes.iter().product::<i64>() as f64;
            let count = self.constant(Tensor::scalar(count))?;
            let count = self.cast(count, DType::Double, dtype)?;
            y = self.node("Mul", typed(dtype), &[y, count])?;
        }
        if by == "minimum" {
            y = self.node("Neg", typed(dtype), &[y])?;
        }
        if pool.is_turned {
            y = self.transpose(y, dtype, &exchanged)?;
        }
        Ok(y)
    }

    /// The gradient of a max pool without padding; `false` if the op is none.
    fn max_pool_grad(&mut self, op: &Op, ty: &TensorType, window: &Window) -> Result<bool> {
        let picks_first = |block: &Block| {
            let compare = block.ops.first().filter(|op| op.name == "compare");
            let is_first = compare.is_some_and(|op| {
                let args: Vec<ValueId> = block.args.iter().map(|(id, _)| *id).collect();
                op.operands == args && text(op, "comparison_direction").is_ok_and(|d| d == "GE")
            });
            is_first && block.ops.len() == 2
        };
        let is_known = op.regions.first().is_some_and(picks_first)
            && op.regions.get(1).and_then(only_op) == Some("add")
            && self.known_scalar(op.operands[2])?.as_ref().and_then(number) == Some(0.0)
            && matches!(ty.dtype, DType::Float | DType::Double)
            && window.pads.iter().all(|p| *p == 0);
        let source = self.ty(op.operands[1])?.clone();
        let (Some(pool), Some(grads)) = (Pool::of(ty, window), Pool::of(&source, window)) else {
            return Ok(false);
        };
        if !is_known || pool.shape.len() != 4 {
            return Ok(false);
        }
        let (x, dy) = (self.full(op.operands[0])?, self.full(op.operands[1])?);
        let [shape, grads_shape] = [self.ints(&pool.shape)?, self.ints(&grads.shape)?];
        let mut x = self.reshape_to(x, ty.dtype, shape)?;
        let mut dy = self.reshape_to(dy, ty.dtype, grads_shape)?;
        let exchanged = [3, 1, 2, 0];
        if pool.is_turned {
            x = self.transpose(x, ty.dtype, &exchanged)?;
            dy = self.transpose(dy, ty.dtype, &exchanged)?;
        }
        let attrs = typed(ty.dtype)
            .with("ksize", AttrValue::ints(&pool.sizes))
            .with("strides", AttrValue::ints(&pool.strides))
            .with("padding", AttrValue::str("VALID"));
        let y = self.node("MaxPool", attrs.clone(), &[x])?;
        let mut dx = self.node("MaxPoolGrad", attrs, &[x, y, dy])?;
        if pool.is_turned {
            dx = self.transpose(dx, ty.dtype, &exchanged)?;
        }
        let shape = self.ints(&open_dims(ty))?;
        let dx = self.reshape_to(dx, ty.dtype, shape)?;
        self.set(op, dx)?;
        Ok(true)
    }

    pub(super) fn select_and_scatter(&mut self, op: &Op) -> Result<()> {
        let [x, source, init] = op.operands[..] else {
            return Err(invalid_argument!("select_and_scatter has three operands"));
        };
        let ty = self.ty(x)?.clone();
        let window = Window::of(op, ty.dims.len())?;
        if self.max_pool_grad(op, &ty, &window)? {
            return Ok(());
        }
        let (select, scatter) = (self.pure_region(op, 0)?, self.pure_region(op, 1)?);
        let inputs = [
            self.full(x)?,
            self.ints(&window.sizes)?,
            self.ints(&window.strides)?,
            self.pairs(&window.pads)?,
            self.full(source)?,
            self.full(init)?,
        ];
        let attrs = typed(ty.dtype)
            .with("Tindices", AttrValue::Type(DType::Int64))
            .with("select", function_ref(&select))
            .with("scatter", function_ref(&scatter));
        let y = self.node("XlaSelectAndScatter", attrs, &inputs)?;
        self.set(op, y)
    }
}

/// The windows of an op, by dimension.
struct Window {
    sizes: Vec<i64>,
    strides: Vec<i64>,
    base_dilations: Vec<i64>,
    dilations: Vec<i64>,
    /// Before and behind each dimension.
    pads: Vec<i64>,
}

impl Window {
    fn of(op: &Op, rank: usize) -> Result<Window> {
        let window = Window {
            sizes: ints_or(op, "window_dimensions", rank, 1),
            strides: ints_or(op, "window_strides", rank, 1),
            base_dilations: ints_or(op, "base_dilations", rank, 1),
            dilations: ints_or(op, "window_dilations", rank, 1),
            pads: ints_or(op, "padding", 2 * rank, 0),
        };
        let lists = [
            &window.sizes,
            &window.strides,
            &window.base_dilations,
            &window.dilations,
        ];
        match lists.iter().all(|l| l.len() == rank) && window.pads.len() == 2 * rank {
            true => Ok(window),
            false => Err(invalid_argument!(
                "the window does not have {rank} dimensions"
            )),
        }
    }

    /// Checks that the result is as large as there are windows.
    fn check(&self, x: &TensorType, y: &TensorType) -> Result<()> {
        if x.dims.len() != y.dims.len() {
            return Err(invalid_argument!(
                "windows have another rank than their result"
            ));
        }
        for d in 0..x.dims.len() {
            Axis {
                size: x.dims[d],
                base_dilation: self.base_dilations[d],
                pads: [self.pads[2 * d], self.pads[2 * d + 1]],
                window: usize::try_from(self.sizes[d]).ok(),
                dilation: self.dilations[d],
                stride: self.strides[d],
            }
            .check(y.dims[d])?;
        }
        Ok(())
    }

    fn is_dense(&self) -> bool {
        let mut all = self.base_dilations.iter().chain(&self.dilations);
        all.all(|d| *d == 1)
    }

    /// The dimension along which each window reaches from the first element to its own, or from its own to the last one.
    fn cumulative(&self, ty: &TensorType) -> Option<(usize, bool)> {
        let dims = known_dims(ty)?;
        let mut long = (0..dims.len()).filter(|d| self.sizes[*d] != 1);
        let (axis, None) = (long.next()?, long.next()) else {
            return None;
        };
        let n = dims[axis] as i64;
        let is_plain = self.is_dense() && self.strides.iter().all(|s| *s == 1);
        let pads = (self.pads[2 * axis], self.pads[2 * axis + 1]);
        let others = (0..self.pads.len()).all(|i| i / 2 == axis || self.pads[i] == 0);
        let is_reverse = pads == (0, n - 1);
        let fits = self.sizes[axis] == n && n > 1 && (pads == (n - 1, 0) || is_reverse);
        (is_plain && others && fits).then_some((axis, is_reverse))
    }

    /// The dimensions that windows reach along, if they are next to each other and few.
    fn spatial(&self) -> Option<std::ops::Range<usize>> {
        let is_own = |d: &usize| {
            self.sizes[*d] != 1
                || self.strides[*d] != 1
                || self.pads[2 * d] != 0
                || self.pads[2 * d + 1] != 0
        };
        let first = (0..self.sizes.len()).find(is_own)?;
        let last = (0..self.sizes.len()).rev().find(is_own)?;
        let fits = last - first < 3 && self.is_dense() && self.pads.iter().all(|p| *p >= 0);
        fits.then_some(first..last + 1)
    }
}

/// A pool over one to three dimensions: [before, …, behind], with a dimension of size 1 where there is only one.
struct Pool {
    shape: Vec<i64>,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    pads: Vec<i64>,
    /// Whether the channels are before the windows.
    is_turned: bool,
}

impl Pool {
    fn of(ty: &TensorType, window: &Window) -> Option<Pool> {
        let spatial = window.spatial()?;
        let known = |dims: &[Option<usize>]| -> Option<i64> {
            let sizes = dims.iter().map(|d| d.map(|d| d as i64));
            sizes
                .collect::<Option<Vec<i64>>>()
                .map(|d| d.iter().product())
        };
        // A shape has one open dimension at most.
        if ty.dims.iter().filter(|d| d.is_none()).count() > 1 {
            return None;
        }
        let before = known(&ty.dims[..spatial.start]);
        let behind = known(&ty.dims[spatial.end..])?;
        let own: Option<Vec<usize>> = ty.dims[spatial.clone()].iter().copied().collect();
        let is_turned = behind == 1 && before.is_some_and(|n| n > 1);
        let row = if spatial.len() == 1 {
            vec![1i64]
        } else {
            vec![]
        };
        let around = |own: &[i64], edge: [i64; 2]| {
            let mut all = vec![edge[0]];
            all.extend(row.iter().chain(own));
            all.push(edge[1]);
            all
        };
        let own: Vec<i64> = own?.iter().map(|d| *d as i64).collect();
        let mut pads = vec![0; 2 + 2 * row.len()];
        pads.extend_from_slice(&window.pads[2 * spatial.start..2 * spatial.end]);
        pads.extend([0, 0]);
        Some(Pool {
            shape: around(&own, [before.unwrap_or(-1), behind]),
            sizes: around(&window.sizes[spatial.clone()], [1, 1]),
            strides: around(&window.strides[spatial], [1, 1]),
            pads,
            is_turned,
        })
    }
}
