//! RaggedTensorToTensor (TensorFlow: `core/kernels/ragged_tensor_to_tensor_op.cc`,
//! `core/util/ragged_to_dense_util.cc`).

use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::broadcast::broadcast_tensor;
use ferroflow_functors::gradients::part;
use ferroflow_functors::indices::{Ints, int, ints, list};
use ferroflow_opdef::{
    Attrs, Gradient, GradientCtx, IndexedSlices, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx,
};
use ferroflow_tensor::{DType, Item, PartialShape, Shape, Tensor, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "RaggedTensorToTensor",
    "shape: Tshape, values: T, default_value: T, row_partition_tensors: \
     num_row_partition_tensors*Tindex -> result: T | T: type; Tindex: type {int64,int32}; \
     Tshape: type {int64,int32}; num_row_partition_tensors: int >= 1; \
     row_partition_types: list(string)",
)
.shape(infer)
.kernel(kernel)
.gradient(gradient)];

/// The first input of the row partitions.
const PARTITIONS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Partition {
    FirstDimSize,
    ValueRowIds,
    RowSplits,
}

/// The partitions of the ragged dimensions.
#[derive(Clone)]
struct Partitions {
    types: Vec<Partition>,
}

impl Partitions {
    fn of(attrs: &Attrs) -> Result<Partitions> {
        let names = attrs.strs("row_partition_types")?;
        let types = names.iter().map(|name| match *name {
            "FIRST_DIM_SIZE" => Ok(Partition::FirstDimSize),
            "VALUE_ROWIDS" => Ok(Partition::ValueRowIds),
            "ROW_SPLITS" => Ok(Partition::RowSplits),
            "ROW_LENGTHS" | "ROW_LIMITS" | "ROW_STARTS" => {
                Err(invalid_argument!("Unsupported partition type: {name}"))
            }
            _ => Err(invalid_argument!(
                "Unknown string for partition info type: {name}"
            )),
        });
        let types: Vec<Partition> = types.collect::<Result<_>>()?;
        match types[..] {
            [] => {
                return Err(invalid_argument!(
                    "Partition info types should not be empty"
                ));
            }
            [_, ..] if types[1..].contains(&Partition::FirstDimSize) => {
                return Err(invalid_argument!("FIRST_DIM_SIZE must be first"));
            }
            [Partition::FirstDimSize, Partition::ValueRowIds, ..] => {}
            [Partition::FirstDimSize, ..] => {
                return Err(invalid_argument!(
                    "FIRST_DIM_SIZE must be followed by VALUE_ROWIDS"
                ));
            }
            [Partition::ValueRowIds, ..] => {
                return Err(invalid_argument!("VALUE_ROWIDS cannot be first"));
            }
            _ => {}
        }
        let n = attrs.int("num_row_partition_tensors")?;
        if usize::try_from(n).ok() != Some(types.len()) {
            return Err(invalid_argument!(
                "Number of row partition tensors ({n}) does not equal the number of row partition types({}).",
                types.len()
            ));
        }
        Ok(Partitions { types })
    }

    /// The number of partitions before those of ragged dimensions.
    fn skipped(&self) -> usize {
        usize::from(self.types.first() == Some(&Partition::FirstDimSize))
    }

    fn ragged_rank(&self) -> usize {
        self.types.len() - self.skipped()
    }

    /// The type and the input of a dimension's partition.
    fn of_dimension(&self, d: usize) -> (Partition, usize) {
        let at = d + self.skipped();
        let partition = self.types.get(at).copied();
        (partition.unwrap_or(Partition::RowSplits), at + PARTITIONS)
    }
}

fn infer(ctx: &mut ShapeCtx) -> Result<()> {
    let partitions = Partitions::of(ctx.attrs())?;
    let values = ctx.input(1);
    check_default(&ctx.input(2), &values)?;
    let rank = values.rank().map(|rank| rank + partitions.ragged_rank());
    let wanted = match ctx.constant(0) {
        Some(shape) => wanted_shape(shape)?,
        None => PartialShape::unknown(),
    };
    if wanted.rank().is_none() && rank.is_none() {
        return Ok(());
    }
    let shape = combined(partitions.ragged_rank(), &wanted, &values)?;
    ctx.set(0, shape);
    Ok(())
}

/// The shape that the caller asks for.
fn wanted_shape(shape: &Tensor) -> Result<PartialShape> {
    let dims = ints(shape)?;
    match (shape.shape().rank(), &dims[..]) {
        (0, [-1]) => Ok(PartialShape::unknown()),
        (0, _) => Err(invalid_argument!(
            "The only valid scalar shape tensor is the fully unknown shape specified as -1."
        )),
        (1, dims) => match dims.iter().find(|&&d| d < -1) {
            Some(d) => Err(invalid_argument!("Dimension {d} must be >= -1")),
            None => PartialShape::from_tf(Some(dims)),
        },
        (rank, _) => Err(invalid_argument!(
            "Shape must be at most rank 1 but is rank {rank}"
        )),
    }
}

/// A shape as messages show it, unknown dimensions as question marks.
fn shown(shape: &PartialShape) -> String {
    match shape.dims() {
        Some(dims) => list(
            dims.iter()
                .map(|d| d.map_or("?".to_string(), |d| d.to_string())),
        ),
        None => "<unknown>".to_string(),
    }
}

/// The shape of the result as far as the wanted shape and the values say.
fn combined(
    ragged_rank: usize,
    wanted: &PartialShape,
    values: &PartialShape,
) -> Result<PartialShape> {
    let Some(value_dims) = values.dims() else {
        return Ok(wanted.clone());
    };
    let rank = ragged_rank + value_dims.len();
    let mut dims = match wanted.dims() {
        Some(dims) => dims.to_vec(),
        None => vec![None; rank],
    };
    let incompatible = |why: String| -> Status {
        invalid_argument!(
            "rt_input.shape and shape={} are incompatible: {why}",
            shown(wanted)
        )
    };
    if rank != dims.len() {
        return Err(incompatible(format!(
            "rt_input.rank = {rank} but shape.rank = {}",
            dims.len()
        )));
    }
    for (i, value) in value_dims.iter().enumerate().skip(1) {
        let at = i + ragged_rank;
        match (dims[at], value) {
            (Some(d), Some(value)) if d != *value => {
                return Err(incompatible(format!(
                    "rt_input.shape[{at}] = {value} but shape[{at}] = {d}"
                )));
            }
            (None, value) => dims[at] = *value,
            _ => {}
        }
    }
    Ok(PartialShape::of(dims))
}

fn check_default(default: &PartialShape, values: &PartialShape) -> Result<()> {
    let (Some(default_dims), Some(value_dims)) = (default.dims(), values.dims()) else {
        return Ok(());
    };
    let incompatible = |why: String| -> Status {
        invalid_argument!(
            "default_value.shape={} and rt_input.flat_values.shape={} are incompatible: {why}",
            shown(default),
            shown(values)
        )
    };
    let n = default_dims.len();
    if n >= value_dims.len() {
        return Err(incompatible(format!(
            "default_value.rank = {n}  must be less than rt_input.flat_values.rank = {}",
            value_dims.len()
        )));
    }
    for (i, (d, value)) in default_dims.iter().zip(&value_dims[1..]).enumerate() {
        if let (Some(d), Some(value)) = (d, value)
            && *d != 1
            && d != value
        {
            let at = i as i64 - n as i64;
            return Err(incompatible(format!(
                "default_value.shape[{at}] = {d} but rt_input.flat_values.shape[{at}] = {value}"
            )));
        }
    }
    Ok(())
}

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let partitions = Partitions::of(build.attrs)?;
    let dtype = build.output(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            to_tensor::<T>(ctx, &partitions)
        })),
    )
}

/// The widest row of a partition.
fn max_width(partition: Partition, tensor: &[i64]) -> Result<i64> {
    match partition {
        Partition::RowSplits => {
            let widths = tensor
                .windows(2)
                .map(|pair| pair[1].saturating_sub(pair[0]));
            Ok(widths.max().unwrap_or(0).max(0))
        }
        Partition::ValueRowIds => {
            let runs = tensor.chunk_by(|a, b| a == b);
            Ok(runs.map(<[i64]>::len).max().unwrap_or(0) as i64)
        }
        Partition::FirstDimSize => Err(invalid_argument!(
            "Cannot handle partition type FIRST_DIM_SIZE"
        )),
    }
}

/// The number of rows before any of them was cut.
fn first_dimension(ctx: &KernelCtx, partitions: &Partitions) -> Result<i64> {
    let first = ctx.input(PARTITIONS)?;
    if first.num_elements() == 0 {
        return Err(invalid_argument!(
            "Invalid first partition input. Tensor requires at least one element."
        ));
    }
    match partitions.types.first() {
        Some(Partition::FirstDimSize) => {
            int(first).ok_or_else(|| invalid_argument!("FIRST_DIM_SIZE must be a scalar."))
        }
        _ => Ok(first.shape().first().map_or(0, |&n| n as i64 - 1)),
    }
}

/// The shape of the result.
fn output_shape(ctx: &KernelCtx, partitions: &Partitions, first: i64) -> Result<Shape> {
    let values: PartialShape = ctx.shape(1)?.into();
    check_default(&ctx.shape(2)?.into(), &values)?;
    let wanted = wanted_shape(ctx.input(0)?)?;
    let shape = combined(partitions.ragged_rank(), &wanted, &values)?;
    let mut dims = Vec::new();
    for (i, d) in shape.dims().unwrap_or_default().iter().enumerate() {
        dims.push(match (d, i) {
            (Some(d), _) => *d as i64,
            (None, 0) => first,
            (None, _) => {
                let (partition, input) = partitions.of_dimension(i - 1);
                max_width(partition, &ints(ctx.input(input)?)?)?
            }
        });
    }
    Shape::checked(&dims)
}

/// Where the rows of a dimension begin in the result; `None` for those outside of it.
struct Places {
    places: Vec<Option<usize>>,
    /// Rows behind `places`, all of them outside.
    n_rows: usize,
}

impl Places {
    fn get(&self, row: usize) -> Option<usize> {
        self.places.get(row).copied().flatten()
    }
}

/// The places of the elements of rows that splits describe.
fn by_splits(
    splits: &[i64],
    parents: &Places,
    stride: usize,
    width: usize,
    most: usize,
) -> Result<Places> {
    let n_rows = splits.len().saturating_sub(1);
    if n_rows > parents.n_rows {
        return Err(invalid_argument!(
            "Row partition size is greater than output size: {n_rows} > {}",
            parents.n_rows
        ));
    }
    let invalid = || invalid_argument!("Invalid row split size.");
    let mut places = Vec::new();
    for (row, pair) in splits.windows(2).enumerate() {
        let length = usize::try_from(pair[1].saturating_sub(pair[0])).unwrap_or(0);
        if places.len() + length > most {
            return Err(invalid());
        }
        let start = parents.get(row);
        let place = |i: usize| start.filter(|_| i < width).map(|start| start + i * stride);
        places.extend((0..length).map(place));
    }
    if splits
        .last()
        .is_some_and(|&last| last != places.len() as i64)
    {
        return Err(invalid());
    }
    let n_rows = places.len();
    Ok(Places { places, n_rows })
}

/// The places of the elements whose rows are known.
fn by_row_ids(ids: &[i64], parents: &Places, stride: usize, width: usize) -> Result<Places> {
    let mut places = Vec::with_capacity(ids.len());
    for (run, name) in ids.chunk_by(|a, b| a == b).zip(names()) {
        let id = run.first().copied().unwrap_or(0);
        let Some(row) = usize::try_from(id).ok().filter(|&row| row < parents.n_rows) else {
            return Err(invalid_argument!(
                "Got {name}={id} which is not less than {}",
                parents.n_rows
            ));
        };
        let start = parents.get(row);
        let place = |i: usize| start.filter(|_| i < width).map(|start| start + i * stride);
        places.extend((0..run.len()).map(place));
    }
    let n_rows = places.len();
    Ok(Places { places, n_rows })
}

/// What TensorFlow calls the first row id and those after it.
fn names() -> impl Iterator<Item = &'static str> {
    std::iter::once("current_value_rowid").chain(std::iter::repeat("next_value_rowid"))
}

/// The place of every value in the result, in elements of the values.
fn places(ctx: &KernelCtx, partitions: &Partitions, first: i64, shape: &Shape) -> Result<Places> {
    let ragged_rank = partitions.ragged_rank();
    let stride = |d: usize| shape[d + 1..=ragged_rank].iter().product::<usize>();
    let n_rows = usize::try_from(first).unwrap_or(0);
    let kept = n_rows.min(shape[0]);
    let mut places = Places {
        places: (0..kept).map(|i| Some(i * stride(0))).collect(),
        n_rows,
    };
    // More rows than this cannot be meant by valid splits.
    let mut most = ctx.shape(1)?.first().copied().unwrap_or(0);
    for i in PARTITIONS..ctx.num_inputs() {
        most = most.max(ctx.input(i)?.num_elements());
    }
    for d in 1..=ragged_rank {
        let (partition, input) = partitions.of_dimension(d - 1);
        let tensor: Ints = ints(ctx.input(input)?)?;
        places = match partition {
            Partition::RowSplits => by_splits(&tensor, &places, stride(d), shape[d], most)?,
            _ => by_row_ids(&tensor, &places, stride(d), shape[d])?,
        };
    }
    Ok(places)
}

fn to_tensor<T: Item>(ctx: &mut KernelCtx, partitions: &Partitions) -> Result<()> {
    let first = first_dimension(ctx, partitions)?;
    let shape = output_shape(ctx, partitions, first)?;
    let values = ctx.input(1)?;
    if values.shape().is_scalar() {
        return Err(invalid_argument!(
            "rt_input.flat_values must not be a scalar"
        ));
    }
    let mut out = ctx.alloc(values.dtype(), shape.clone())?;
    if shape.num_elements() == 0 {
        return ctx.set_output(0, out);
    }
    let places = places(ctx, partitions, first, &shape)?;
    let element = Shape::from(&shape[partitions.ragged_rank() + 1..]);
    let size = element.num_elements();
    let default = broadcast_tensor(ctx, ctx.input(2)?, element)?;
    let (default, from) = (default.items::<T>()?, values.items::<T>()?);
    let to = out.items_mut::<T>()?;
    match default {
        [one] => to.fill(one.clone()),
        _ => to
            .chunks_exact_mut(size)
            .for_each(|to| to.clone_from_slice(default)),
    }
    if places.places.len() * size > from.len() {
        return Err(invalid_argument!(
            "The row partitions describe {} values, but there are {}",
            places.places.len(),
            from.len() / size
        ));
    }
    for (place, from) in places.places.iter().zip(from.chunks_exact(size)) {
        let to = place.and_then(|place| to.get_mut(place * size..(place + 1) * size));
        if let Some(to) = to {
            to.clone_from_slice(from);
        }
    }
    ctx.set_output(0, out)
}

/// The gradients of the values, as slices, and of the default value.
fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (dy, values, default) = (g.dy(0), g.x(1), g.x(2));
    let ragged_rank = Partitions::of(g.attrs())?.ragged_rank();
    let shape = values.shape_of();
    let zero = dy.int(0);
    // Which value each element of the result is, -1 for the default value.
    let n = shape.op("GatherV2", &[zero, zero]);
    let outer = part(
        dy.op("Shape", &[]),
        None,
        Some(dy.int(ragged_rank as i32 + 1)),
    );
    let numbers = zero.op("Range", &[n, dy.int(1)]);
    let mut inputs = vec![outer, numbers, dy.int(-1)];
    inputs.extend((PARTITIONS..g.num_inputs()).map(|i| g.x(i)));
    let attrs = [
        ("T", DType::Int32.into()),
        ("Tindex", g.x(PARTITIONS).dtype().into()),
        ("Tshape", DType::Int32.into()),
        g.attr("num_row_partition_tensors"),
        g.attr("row_partition_types"),
    ];
    let numbers = dy.make("RaggedTensorToTensor", &inputs, &attrs);
    let numbers = numbers.reshape(dy.ints([-1]));
    let is_default = numbers.op("Equal", &[dy.int(-1)]);
    let row = part(shape, Some(dy.int(1)), None);
    let sizes = dy.make("ConcatV2", &[dy.ints([-1]), row, zero], &[]);
    let elements = dy.reshape(sizes);
    let kept = is_default.op("LogicalNot", &[]).op("Where", &[]);
    let kept = kept.reshape(dy.ints([-1]));
    let filled = is_default.op("Where", &[]).reshape(dy.ints([-1]));
    let slices = Gradient::Slices(IndexedSlices {
        values: elements.op("GatherV2", &[kept, zero]),
        indices: numbers.op("GatherV2", &[kept, zero]),
        dense_shape: shape,
    });
    g.set_gradient(1, slices)?;
    let filled = elements.op("GatherV2", &[filled, zero]);
    g.set(2, filled.sum_to(default))
}
