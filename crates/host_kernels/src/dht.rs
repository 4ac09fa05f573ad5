//! `tfrt_dht.*`, `tfrt_sht.*`, `coo.*`: creating, filling, comparing and printing tensors.

use super::dense::{
    CooHostTensor, DenseHostTensor, HostTensor, ScalarHostTensor, SharedBuffer, StringHostTensor,
};
use super::shape::TensorShape;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{
    Arg, ArrayAttr, Attr, AttrNumber, Ctx, Frame, KernelFrame, KernelRegistry, TypedAttr,
    TypedAttribute,
};
use ferroflow_sync::Chain;
use ferroflow_tensor::HostAllocator;
use std::sync::Arc;

/// A numeric element type.
trait Element: AttrNumber + Copy + PartialEq + Send + Sync + 'static {
    /// Its name in the names of kernels.
    const NAME: &'static str;
    /// Appends its bytes.
    fn put(self, bytes: &mut Vec<u8>);
    /// Returns whether two numbers differ by at most `ulps` units in the last place.
    fn is_close(self, other: Self, ulps: u32) -> bool;
}

macro_rules! elements {
    ($($ty:ty: $name:literal, $is_close:expr;)*) => {
        $(impl Element for $ty {
            const NAME: &'static str = $name;
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
            fn is_close(self, other: Self, ulps: u32) -> bool {
                $is_close(self, other, ulps)
            }
        })*
    };
}

fn close(a: f32, b: f32, ulps: u32) -> bool {
    let distance = (a - b).abs();
    a == b || distance <= f32::EPSILON * (a + b).abs() * ulps as f32 || distance < f32::MIN_POSITIVE
}

elements!(
    u8: "ui8", |a, b, _| a == b;
    f32: "f32", close;
    i32: "i32", |a, b, _| a == b;
    i64: "i64", |a, b, _| a == b;
);

impl Element for bool {
    const NAME: &'static str = "bool";
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.push(self.into());
    }
    fn is_close(self, other: Self, _: u32) -> bool {
        self == other
    }
}

fn bytes_of<T: Element>(values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::new();
    values.iter().for_each(|v| v.put(&mut bytes));
    bytes
}

fn typed<T: Element>(tensor: &HostTensor) -> Result<&DenseHostTensor> {
    let dense = tensor.dense()?;
    if dense.dtype != T::DTYPE {
        let name = dense.dtype.name().unwrap_or("?");
        return Err(invalid_argument!("tensor is of {name}, not {}", T::NAME));
    }
    Ok(dense)
}

fn create<T: Element>(shape: ArrayAttr<i64>, ctx: Ctx) -> Result<HostTensor> {
    let shape = TensorShape::new(shape.0)?;
    let tensor = DenseHostTensor::new(ctx.host().allocator(), T::DTYPE, shape)?;
    Ok(HostTensor::Dense(tensor))
}

/// Creates a tensor from values, or from one value for all elements.
fn create_with<T: Element>(
    shape: ArrayAttr<i64>,
    values: ArrayAttr<T>,
    ctx: Ctx,
) -> Result<HostTensor> {
    let (allocator, shape) = (ctx.host().allocator(), TensorShape::new(shape.0)?);
    let values = bytes_of(&values.0);
    let tensor = DenseHostTensor::of_values(allocator, T::DTYPE, shape, &values)?;
    Ok(HostTensor::Dense(tensor))
}

fn create_scalar<T: Element>(shape: ArrayAttr<i64>, value: Attr<T>) -> Result<HostTensor> {
    Ok(HostTensor::Scalar(ScalarHostTensor {
        dtype: T::DTYPE,
        shape: TensorShape::new(shape.0)?,
        value: bytes_of(&[value.0]),
    }))
}

fn make<T: Element>(
    buffer: Arg<SharedBuffer>,
    shape: Arg<TensorShape>,
) -> Result<(HostTensor, Chain)> {
    make_sync::<T>(buffer, shape).map(|tensor| (tensor, Chain))
}

fn make_sync<T: Element>(buffer: Arg<SharedBuffer>, shape: Arg<TensorShape>) -> Result<HostTensor> {
    let size = T::DTYPE.size().unwrap_or(1);
    if Some(buffer.size()) != shape.n_elements()?.checked_mul(size) {
        return Err(invalid_argument!(
            "dht.make_tensor failed: buffer_size ({}) is not equal to the number of elements in \
             shape ({}) times element size ({size})",
            buffer.size(),
            *shape
        ));
    }
    let tensor = DenseHostTensor {
        dtype: T::DTYPE,
        shape: shape.0.clone(),
        buffer: buffer.0.clone(),
    };
    Ok(HostTensor::Dense(tensor))
}

fn fill<T: Element>(tensor: Arg<HostTensor>, value: Attr<T>) -> Result<Chain> {
    let one = bytes_of(&[value.0]);
    typed::<T>(&tensor)?.buffer.write(|bytes| {
        for chunk in bytes.chunks_exact_mut(one.len()) {
            chunk.copy_from_slice(&one);
        }
    });
    Ok(Chain)
}

fn store<T: Element>(tensor: &HostTensor, values: &[T]) -> Result<()> {
    let dense = typed::<T>(tensor)?;
    let wanted = dense.shape.n_elements()?;
    if wanted != values.len() {
        return Err(invalid_argument!(
            "Incorrect number of values for the tensor: {}, but expected {wanted}",
            values.len()
        ));
    }
    let values = bytes_of(values);
    dense.buffer.write(|bytes| {
        if bytes.len() == values.len() {
            bytes.copy_from_slice(&values);
        }
    });
    Ok(())
}

fn set<T: Element>(tensor: Arg<HostTensor>, values: ArrayAttr<T>) -> Result<Chain> {
    store(&tensor, &values.0).map(|()| Chain)
}

fn set_sync<T: Element>(tensor: Arg<HostTensor>, values: ArrayAttr<T>) -> Result<()> {
    store(&tensor, &values.0)
}

fn set_from_arguments<T: Element>(frame: &mut KernelFrame) -> Result<()> {
    let values = (2..frame.n_args()).map(|i| frame.arg::<T>(i).copied());
    let values = values.collect::<Result<Vec<T>>>()?;
    store(frame.arg::<HostTensor>(0)?, &values)?;
    frame.emplace(0, Chain);
    Ok(())
}

fn same_bytes(a: &DenseHostTensor, b: &DenseHostTensor) -> bool {
    // Copied: a tensor may be compared with itself, and its lock is not reentrant.
    let left = a.buffer.read(<[u8]>::to_vec);
    a.shape == b.shape && b.buffer.read(|right| left == right)
}

fn equal<T: Element>(a: Arg<HostTensor>, b: Arg<HostTensor>) -> Result<(bool, Chain)> {
    Ok((same_bytes(typed::<T>(&a)?, typed::<T>(&b)?), Chain))
}

/// Returns whether all elements differ by at most `ulps` units in the last place.
fn all_close<T: Element>(a: &HostTensor, b: &HostTensor, ulps: u32) -> Result<(bool, Chain)> {
    let elements = |tensor: &HostTensor| -> Result<Vec<T>> {
        let read = |bytes: &[u8]| bytes.chunks(T::DTYPE.size()?).map(T::from_bytes).collect();
        let elements: Option<Vec<T>> = typed::<T>(tensor)?.buffer.read(read);
        elements.ok_or_else(|| invalid_argument!("tensor is not of {}", T::NAME))
    };
    let (left, right) = (elements(a)?, elements(b)?);
    let mut pairs = left.iter().zip(&right);
    let is_close = a.shape() == b.shape() && pairs.all(|(x, y)| x.is_close(*y, ulps));
    Ok((is_close, Chain))
}

fn to_coo<T: Element>(tensor: Arg<HostTensor>) -> Result<(HostTensor, Chain)> {
    Ok((HostTensor::Coo(dense_to_coo(typed::<T>(&tensor)?)), Chain))
}

/// Returns the nonzero elements with their indices.
pub(super) fn dense_to_coo(dense: &DenseHostTensor) -> CooHostTensor {
    let dims = &dense.shape.0;
    let size = dense.dtype.size().unwrap_or(1);
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    dense.buffer.read(|bytes| {
        for (i, element) in bytes.chunks_exact(size).enumerate() {
            if element.iter().all(|b| *b == 0) {
                continue;
            }
            values.extend(element);
            let mut rest = i as i64;
            let mut row = Vec::new();
            for dim in dims {
                row.push(rest % dim);
                rest /= dim;
            }
            indices.extend(row.iter().rev());
        }
    });
    CooHostTensor {
        dtype: dense.dtype,
        shape: dense.shape.clone(),
        indices,
        first_runs: true,
        values,
    }
}

fn to_dense(tensor: Arg<HostTensor>, ctx: Ctx) -> Result<(HostTensor, Chain)> {
    let dense = coo_to_dense(tensor.coo()?, ctx.host().allocator())?;
    Ok((HostTensor::Dense(dense), Chain))
}

pub(super) fn coo_to_dense(
    coo: &CooHostTensor,
    allocator: &Arc<dyn HostAllocator>,
) -> Result<DenseHostTensor> {
    let dense = DenseHostTensor::new(allocator, coo.dtype, coo.shape.clone())?;
    let size = coo.dtype.size().unwrap_or(1);
    let rank = coo.shape.0.len().max(1);
    let mut dims = coo.shape.0.clone();
    if !coo.first_runs {
        dims.reverse();
    }
    dense.buffer.write(|bytes| {
        for (row, element) in coo.indices.chunks(rank).zip(coo.values.chunks(size)) {
            let (mut at, mut stride) = (0i64, 1i64);
            for (index, dim) in row.iter().rev().zip(&dims) {
                at += index * stride;
                stride *= dim;
            }
            let at = usize::try_from(at)
                .unwrap_or(usize::MAX)
                .saturating_mul(size);
            if let Some(place) = bytes.get_mut(at..at.saturating_add(size)) {
                place.copy_from_slice(element);
            }
        }
    });
    Ok(dense)
}

fn coo_equal(a: Arg<HostTensor>, b: Arg<HostTensor>) -> Result<(bool, Chain)> {
    let (a, b) = (a.coo()?, b.coo()?);
    Ok((a.values == b.values && a.indices == b.indices, Chain))
}

fn string_tensor(shape: ArrayAttr<i64>, values: TypedAttribute) -> Result<HostTensor> {
    let shape = TensorShape::new(shape.0)?;
    let strings = values
        .0
        .elements()?
        .iter()
        .map(|v| v.string().map(str::to_string));
    let strings = strings.collect::<Result<Vec<_>>>()?;
    if strings.len() != shape.n_elements()? {
        return Err(invalid_argument!("Shape mismatch"));
    }
    Ok(HostTensor::String(StringHostTensor { shape, strings }))
}

fn empty_string_tensor(shape: ArrayAttr<i64>) -> Result<HostTensor> {
    let shape = TensorShape::new(shape.0)?;
    let n = shape.n_elements()?;
    if n > 1 << 28 {
        return Err(invalid_argument!("Cannot allocate tensor"));
    }
    let strings = vec![String::new(); n];
    Ok(HostTensor::String(StringHostTensor { shape, strings }))
}

/// Creates a tensor from an attribute.
pub(super) fn from_dense_attr(attr: &TypedAttr, ctx: &Ctx) -> Result<HostTensor> {
    let TypedAttr::Dense {
        dtype,
        shape,
        bytes,
    } = attr
    else {
        return Err(invalid_argument!("attribute is not dense"));
    };
    let shape = TensorShape::new(shape.clone())?;
    let allocator = ctx.host().allocator();
    let tensor = DenseHostTensor::from_bytes(allocator, *dtype, shape, bytes)?;
    Ok(HostTensor::Dense(tensor))
}

fn const_dense_attr(attr: TypedAttribute, ctx: Ctx) -> Result<HostTensor> {
    from_dense_attr(&attr.0, &ctx)
}

fn allocate_buffer(size: i64, _alignment: i64, ctx: Ctx) -> Result<SharedBuffer> {
    let size = usize::try_from(size).ok();
    let buffer = size.and_then(|size| SharedBuffer::new(ctx.host().allocator(), size).ok());
    buffer.ok_or_else(|| invalid_argument!("Cannot allocate host buffer"))
}

fn buffer_slice(buffer: Arg<SharedBuffer>, offset: i64, size: i64) -> Result<SharedBuffer> {
    let (offset, size) = (usize::try_from(offset).ok(), usize::try_from(size).ok());
    let slice = offset
        .zip(size)
        .and_then(|(offset, size)| buffer.slice(offset, size));
    slice.ok_or_else(|| invalid_argument!("Cannot allocate host buffer."))
}

fn print_tensor(tensor: Arg<HostTensor>, ctx: Ctx) -> Chain {
    ctx.host().print(&format!("{}\n", tensor.show(ctx.host())));
    Chain
}

fn print_tensor_sync(tensor: Arg<HostTensor>, ctx: Ctx) {
    ctx.host().print(&format!("{}\n", tensor.show(ctx.host())));
}

fn print_shape(tensor: Arg<HostTensor>, ctx: Ctx) -> Chain {
    ctx.host().print(&format!("{}\n", tensor.shape()));
    Chain
}

/// Copies the part of `input` from `begin` on that has the size of `output`.
fn slice_3(
    input: Arg<HostTensor>,
    begin: Arg<HostTensor>,
    _chain: Chain,
    output: Arg<HostTensor>,
) -> Result<Chain> {
    let (from, to) = (typed::<i32>(&input)?, typed::<i32>(&output)?);
    let begin = typed::<i64>(&begin)?.buffer.read(|bytes| {
        let words = bytes.chunks(8).filter_map(i64::from_bytes);
        words.collect::<Vec<i64>>()
    });
    let wrong = || invalid_argument!("slice is outside its input");
    let ([_, h, w], [d2, h2, w2], [d0, h0, w0]) = (&from.shape.0[..], &to.shape.0[..], &begin[..])
    else {
        return Err(wrong());
    };
    let source = from.buffer.read(<[u8]>::to_vec);
    let mut copy = Vec::new();
    for i in 0..*d2 {
        for j in 0..*h2 {
            for k in 0..*w2 {
                let at = ((i + d0) * h + j + h0) * w + k + w0;
                let at = usize::try_from(at).map_err(|_| wrong())?;
                copy.extend(source.get(4 * at..4 * at + 4).ok_or_else(wrong)?);
            }
        }
    }
    to.buffer.write(|bytes| {
        bytes
            .iter_mut()
            .zip(&copy)
            .for_each(|(to, from)| *to = *from);
    });
    Ok(Chain)
}

fn register_type<T: Element>(registry: &mut KernelRegistry) {
    let name = |kernel: &str| format!("{kernel}.{}", T::NAME);
    for rank in 0..5 {
        let ranked = |kernel: &str| format!("{kernel}.{}.{rank}", T::NAME);
        registry
            .add(&ranked("tfrt_dht.create_uninitialized_tensor"), create::<T>)
            .add_sync(
                &ranked("tfrt_dht_sync.create_uninitialized_tensor"),
                create::<T>,
            );
    }
    registry
        .add(&name("tfrt_dht.make_tensor"), make::<T>)
        .add(&name("tfrt_dht.fill_tensor_with_constant"), fill::<T>)
        .add(&name("tfrt_dht.set_tensor_with_constant_values"), set::<T>)
        .add_sync(
            &name("tfrt_dht_sync.set_tensor_with_constant_values"),
            set_sync::<T>,
        )
        .add_raw(
            &name("tfrt_dht.set_tensor_with_values"),
            set_from_arguments::<T>,
        )
        .add(&name("tfrt_dht.tensor_equal"), equal::<T>)
        .add_sync(&name("tfrt_dht_sync.create_dense_tensor"), create_with::<T>)
        .add_sync(
            &name("tfrt_dht_sync.create_from_scalar"),
            create_scalar::<T>,
        )
        .add_sync(&name("tfrt_dht_sync.make_tensor"), make_sync::<T>);
    let precisions = [
        ("", 2),
        ("3ulp.", 3),
        ("1000ulp.", 1000),
        ("2000ulp.", 2000),
        ("100000ulp.", 100_000),
    ];
    for (precision, ulps) in precisions {
        registry.add(
            &format!("tfrt_dht.tensor_allclose.{precision}{}", T::NAME),
            move |a: Arg<HostTensor>, b: Arg<HostTensor>| all_close::<T>(&a, &b, ulps),
        );
    }
}

fn register_sparse<T: Element>(registry: &mut KernelRegistry) {
    for rank in 0..4 {
        let name = |kernel: &str| format!("coo.{kernel}.{}.{rank}", T::NAME);
        registry
            .add(&name("convert_dht_to_coo"), to_coo::<T>)
            .add(&name("convert_coo_to_dht"), to_dense)
            .add(&name("tensor_equal"), coo_equal);
    }
}

pub(super) fn register(registry: &mut KernelRegistry) {
    register_type::<u8>(registry);
    register_type::<f32>(registry);
    register_type::<i32>(registry);
    register_type::<i64>(registry);
    register_type::<bool>(registry);
    register_sparse::<f32>(registry);
    register_sparse::<i32>(registry);
    registry
        .add("tfrt_dht.allocate_buffer", allocate_buffer)
        .add_sync("tfrt_dht_sync.allocate_buffer", allocate_buffer)
        .add("tfrt_dht.print_tensor", print_tensor)
        .add_sync("tfrt_dht_sync.print_tensor", print_tensor_sync)
        .add("coo.print_tensor", print_tensor)
        .add("tfrt_dht.print_tensor_shape", print_shape)
        .add("tfrt_dht.get_tensor_shape", |t: Arg<HostTensor>| {
            t.shape().clone()
        })
        .add_sync("tfrt_dht_sync.get_tensor_shape", |t: Arg<HostTensor>| {
            t.shape().clone()
        })
        .add("tfrt_dht.no_op_ht", |_: Arg<HostTensor>| Chain)
        .add("tfrt_dht.get_buffer", |t: Arg<HostTensor>| {
            Ok::<_, ferroflow_base::Status>((t.dense()?.buffer.clone(), Chain))
        })
        .add("tfrt_dht.get_buffer_slice", buffer_slice)
        .add_sync("tfrt_dht_sync.get_buffer_slice", buffer_slice)
        .add(
            "tfrt_dht.print_buffer",
            |buffer: Arg<SharedBuffer>, ctx: Ctx| {
                ctx.host().print(&format!("{}\n", *buffer));
                Chain
            },
        )
        .add("tfrt_sht.create_tensor", string_tensor)
        .add_sync("tfrt_sht_sync.create_tensor", string_tensor)
        .add_sync(
            "tfrt_sht_sync.create_uninitialized_tensor",
            empty_string_tensor,
        )
        .add("tfrt_test.const_dense_attr", const_dense_attr)
        .add_sync("tfrt_test.sync.const_dense_attr", const_dense_attr)
        .add("tfrt_test.slice_inplace.i32.3", slice_3);
}
