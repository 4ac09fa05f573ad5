//! Recurrent layers, step by step in a while loop.

use super::Network;
use ferroflow_base::{Result, internal};
use ferroflow_graph::{GraphBuilder, Output, WhileOptions};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// The outputs of a recurrent layer.
#[derive(Clone, Copy, Debug)]
pub struct Recurrent {
    /// The output of each time step: `[batch, time, units]`.
    pub outputs: Output,
    /// The output of the last time step: `[batch, units]`.
    pub last: Output,
}

/// A TensorArray: its handle and the flow that orders its accesses.
type Array = (Output, Output);

impl Network {
    /// Adds an LSTM (Hochreiter & Schmidhuber 1997) over `x: [batch, time, n]`. Batch and time may
    /// be unknown.
    ///
    /// The bias of the forget gates is initialized to one.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if `x` has another rank or an unknown last dimension; ALREADY_EXISTS if the
    /// name is taken.
    pub fn lstm(&mut self, name: &str, x: Output, units: usize) -> Result<Recurrent> {
        let n = self.dim(x, 2)?;
        let kernel = [n.saturating_add(units), units.saturating_mul(4)];
        let fans = kernel.map(|n| n as f32);
        let kernel = self.weight(&format!("{name}/kernel"), &kernel, fans)?;
        let mut bias = vec![0f32; 4 * units];
        bias.iter_mut()
            .skip(units)
            .take(units)
            .for_each(|b| *b = 1.0);
        let bias = Tensor::vector(&bias)?;
        let bias = self
            .builder
            .constant(&format!("{name}/bias/Initial"), bias)?;
        let bias = self.add_variable(
            &format!("{name}/bias"),
            bias,
            Shape::from([4 * units]),
            true,
        )?;
        let (kernel, bias) = (kernel.value, bias.value);
        self.builder
            .scope(name, |b| along(b, x, kernel, bias, units))
    }
}

fn apply(b: &mut GraphBuilder<'static>, op: &str, inputs: &[Output]) -> Result<Output> {
    let node = b.op(op);
    inputs.iter().fold(node, |n, i| n.input(*i)).output()
}

fn int(b: &mut GraphBuilder<'static>, value: i32) -> Result<Output> {
    b.constant("Const", Tensor::scalar(value))
}

/// Swaps batch and time.
fn transposed(b: &mut GraphBuilder<'static>, x: Output) -> Result<Output> {
    let order = b.constant("perm", Tensor::vector(&[1i32, 0, 2])?)?;
    apply(b, "Transpose", &[x, order])
}

fn shaped(b: &mut GraphBuilder<'static>, x: Output, dims: &[Option<usize>]) -> Result<Output> {
    let shape = AttrValue::Shape(PartialShape::of(dims.iter().copied()));
    let node = b.op("EnsureShape").input(x);
    node.attr("shape", shape).output()
}

fn array(b: &mut GraphBuilder<'static>, size: Output) -> Result<Array> {
    let made = b
        .op("TensorArrayV3")
        .input(size)
        .attr("dtype", AttrValue::Type(DType::Float))
        .attr("identical_element_shapes", AttrValue::Bool(true))
        .outputs()?;
    match made[..] {
        [handle, flow] => Ok((handle, flow)),
        _ => Err(internal!("TensorArrayV3 has two outputs")),
    }
}

fn along(
    b: &mut GraphBuilder<'static>,
    x: Output,
    kernel: Output,
    bias: Output,
    units: usize,
) -> Result<Recurrent> {
    let x = transposed(b, x)?;
    let shape = apply(b, "Shape", &[x])?;
    let (zero, one) = (int(b, 0)?, int(b, 1)?);
    let time = apply(b, "GatherV2", &[shape, zero, zero])?;
    let batch = apply(b, "GatherV2", &[shape, one, zero])?;
    let width = int(b, units as i32)?;
    let state = b.op("Pack").inputs(&[batch, width]).output()?;
    let nothing = b.constant("zeros/Const", Tensor::scalar(0f32))?;
    let state = apply(b, "Fill", &[state, nothing])?;

    let all = apply(b, "Range", &[zero, time, one])?;
    let (read, flow) = array(b, time)?;
    let scattered = apply(b, "TensorArrayScatterV3", &[read, all, x, flow])?;
    let (written, flow) = array(b, time)?;
    let vars = [zero, flow, state, state];
    let done = b.while_loop(
        "while",
        &vars,
        |b, v| match *v {
            [t, ..] => apply(b, "Less", &[t, time]),
            _ => Err(internal!("a loop without variables")),
        },
        |b, v| {
            let [t, flow, c, h] = *v else {
                return Err(internal!("a loop of four variables"));
            };
            let x = b.op("TensorArrayReadV3").input(read).input(t);
            let x = x
                .input(scattered)
                .attr("dtype", AttrValue::Type(DType::Float))
                .output()?;
            let (c, h) = cell(b, x, c, h, kernel, bias)?;
            let flow = apply(b, "TensorArrayWriteV3", &[written, t, h, flow])?;
            Ok(vec![apply(b, "AddV2", &[t, one])?, flow, c, h])
        },
        WhileOptions::default(),
    )?;
    let [_, flow, _, last] = done[..] else {
        return Err(internal!("a loop of four variables"));
    };
    let outputs = b
        .op("TensorArrayGatherV3")
        .input(written)
        .input(all)
        .input(flow)
        .attr("dtype", AttrValue::Type(DType::Float))
        .output()?;
    let outputs = transposed(b, outputs)?;
    // The output of a loop has lost its shape.
    Ok(Recurrent {
        outputs: shaped(b, outputs, &[None, None, Some(units)])?,
        last: shaped(b, last, &[None, Some(units)])?,
    })
}

/// Adds one step: gates in the order input, forget, candidate, output.
fn cell(
    b: &mut GraphBuilder<'static>,
    x: Output,
    c: Output,
    h: Output,
    kernel: Output,
    bias: Output,
) -> Result<(Output, Output)> {
    let axis = int(b, 1)?;
    let both = b.op("ConcatV2").inputs(&[x, h]).input(axis).output()?;
    let product = apply(b, "MatMul", &[both, kernel])?;
    let gates = apply(b, "BiasAdd", &[product, bias])?;
    let gates = b
        .op("Split")
        .input(axis)
        .input(gates)
        .attr("num_split", AttrValue::Int(4))
        .outputs()?;
    let [enter, forget, candidate, out] = gates[..] else {
        return Err(internal!("Split has the requested outputs"));
    };
    let mut of = |op: &str, inputs: &[Output]| apply(b, op, inputs);
    let (enter, forget) = (of("Sigmoid", &[enter])?, of("Sigmoid", &[forget])?);
    let (candidate, out) = (of("Tanh", &[candidate])?, of("Sigmoid", &[out])?);
    let (kept, new) = (of("Mul", &[forget, c])?, of("Mul", &[enter, candidate])?);
    let c = of("AddV2", &[kept, new])?;
    let said = of("Tanh", &[c])?;
    let h = of("Mul", &[out, said])?;
    Ok((c, h))
}
