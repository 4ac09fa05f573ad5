//! Gradients of TensorLists. The gradient of a list is a list of gradients, as long as it.

use ferroflow_base::Result;
use ferroflow_opdef::{Expr, GradientCtx};
use ferroflow_tensor::DType;

/// A shape of which nothing is known.
fn any_shape(e: Expr) -> Expr {
    e.int(-1)
}

fn of_dtype(dtype: DType) -> [(&'static str, ferroflow_opdef::AttrValue); 1] {
    [("element_dtype", dtype.into())]
}

/// The shape of one element of a tensor of several.
fn element_shape(t: Expr) -> Expr {
    let attrs = [("end_mask", 1i64.into())];
    let slice = [t.ints([1]), t.ints([0]), t.ints([1])];
    t.shape_of().op_with("StridedSlice", &slice, &attrs)
}

pub(crate) fn push_back(g: &mut GradientCtx) -> Result<()> {
    let (item, d) = (g.x(1), g.dy(0));
    let inputs = [d, item.op("Shape", &[])];
    let parts = d.node("TensorListPopBack", &inputs, &of_dtype(item.dtype()));
    for (i, part) in parts.into_iter().enumerate() {
        g.set(i, part)?;
    }
    Ok(())
}

pub(crate) fn pop_back(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("TensorListPushBack", &[g.dy(1)]);
    g.set(0, dx)
}

pub(crate) fn get_item(g: &mut GradientCtx) -> Result<()> {
    let (list, index, d) = (g.x(0), g.x(1), g.dy(0));
    let n = list.op("TensorListLength", &[]);
    let empty = any_shape(d).op_with("TensorListReserve", &[n], &of_dtype(d.dtype()));
    g.set(0, empty.op("TensorListSetItem", &[index, d]))
}

pub(crate) fn set_item(g: &mut GradientCtx) -> Result<()> {
    let (index, item, d) = (g.x(1), g.x(2), g.dy(0));
    let gone = item.zeros_like();
    g.set(0, d.op("TensorListSetItem", &[index, gone]))?;
    let inputs = [index, item.op("Shape", &[])];
    let di = d.op_with("TensorListGetItem", &inputs, &of_dtype(item.dtype()));
    g.set(2, di)
}

pub(crate) fn resize(g: &mut GradientCtx) -> Result<()> {
    let n = g.x(0).op("TensorListLength", &[]);
    let dx = g.dy(0).op("TensorListResize", &[n]);
    g.set(0, dx)
}

pub(crate) fn stack(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    g.set(0, d.op("TensorListFromTensor", &[element_shape(d)]))
}

pub(crate) fn from_tensor(g: &mut GradientCtx) -> Result<()> {
    let (x, d) = (g.x(0), g.dy(0));
    let dx = d.op_with("TensorListStack", &[element_shape(x)], &of_dtype(x.dtype()));
    g.set(0, dx.reshape_like(x))
}

pub(crate) fn gather(g: &mut GradientCtx) -> Result<()> {
    let (list, indices, d) = (g.x(0), g.x(1), g.dy(0));
    let n = list.op("TensorListLength", &[]);
    let dx = d.op("TensorListScatterV2", &[indices, element_shape(d), n]);
    g.set(0, dx)
}

pub(crate) fn scatter(g: &mut GradientCtx) -> Result<()> {
    let (x, indices, d) = (g.x(0), g.x(1), g.dy(0));
    let inputs = [indices, element_shape(x)];
    g.set(
        0,
        d.op_with("TensorListGather", &inputs, &of_dtype(x.dtype())),
    )
}

pub(crate) fn scatter_into(g: &mut GradientCtx) -> Result<()> {
    let (x, indices, d) = (g.x(1), g.x(2), g.dy(0));
    let gone = [x.zeros_like(), indices];
    g.set(0, d.op("TensorListScatterIntoExistingList", &gone))?;
    let inputs = [indices, element_shape(x)];
    g.set(
        1,
        d.op_with("TensorListGather", &inputs, &of_dtype(x.dtype())),
    )
}

pub(crate) fn concat(g: &mut GradientCtx) -> Result<()> {
    let (d, lengths) = (g.dy(0), g.y(1));
    // Elements differ in their first dimension.
    let rest = element_shape(d);
    let shape = d.make("ConcatV2", &[d.ints([-1]), rest, d.int(0)], &[]);
    g.set(0, d.op("TensorListSplit", &[shape, lengths]))
}

pub(crate) fn split(g: &mut GradientCtx) -> Result<()> {
    let (x, d) = (g.x(0), g.dy(0));
    let shape = x.make("ConcatV2", &[x.ints([-1]), element_shape(x), x.int(0)], &[]);
    let lengths = x.constant(ferroflow_tensor::Tensor::vector::<i64>(&[]));
    let dx = d.op_with(
        "TensorListConcatV2",
        &[shape, lengths],
        &of_dtype(x.dtype()),
    );
    g.set(0, dx)
}
