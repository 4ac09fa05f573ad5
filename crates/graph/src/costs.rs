//! [`Costs`]: what the nodes of a graph cost, for placement and for summaries.

use crate::{Graph, NodeId, Output, ShapeMap};
use smallvec::SmallVec;

/// Time of a node that does nothing, in nanoseconds.
const PER_NODE: f64 = 50.0;
/// Additions and multiplications per nanosecond.
const FLOPS: f64 = 10.0;
/// Bytes read and written per nanosecond.
const BYTES: f64 = 5.0;

/// What the nodes of one graph cost.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    compute: Vec<u64>,
    bytes: Vec<SmallVec<[u64; 1]>>,
    /// What copies between devices cost.
    pub copies: CopyCosts,
}

/// What copies of tensors between devices cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyCosts {
    /// Nanoseconds of a copy between devices of one task.
    pub local: u64,
    /// Nanoseconds of an empty tensor's way to another task.
    pub latency: u64,
    /// Bytes per nanosecond between tasks.
    pub bandwidth: f64,
}

impl Default for CopyCosts {
    /// Figures of gRPC on one machine; see `bench/RESULTS.md`.
    fn default() -> Self {
        CopyCosts {
            local: 1_000,
            latency: 100_000,
            bandwidth: 1.0,
        }
    }
}

impl CopyCosts {
    /// Nanoseconds of a copy of `bytes` bytes.
    pub(crate) fn of(&self, bytes: u64, within_task: bool) -> u64 {
        match within_task {
            true => self.local,
            false => {
                let transfer = bytes as f64 / self.bandwidth.max(1e-6);
                self.latency.saturating_add(transfer as u64)
            }
        }
    }
}

impl Costs {
    /// Estimates costs from shapes; unknown dimensions count as 1.
    pub fn estimate(graph: &Graph, shapes: &ShapeMap) -> Costs {
        let mut costs = Costs {
            compute: vec![0; graph.id_bound()],
            bytes: vec![SmallVec::new(); graph.id_bound()],
            copies: CopyCosts::default(),
        };
        for (id, node) in graph.iter() {
            let outputs = node.outputs.iter().enumerate().map(|(slot, dtype)| {
                let elements: f64 = known(shapes, Output::new(id, slot)).iter().product();
                (elements * dtype.size() as f64) as u64
            });
            costs.bytes[id.index()] = outputs.collect();
        }
        for (id, node) in graph.iter() {
            let read = node.inputs.iter().map(|input| costs.bytes(*input));
            let moved: u64 = read.chain(costs.bytes[id.index()].iter().copied()).sum();
            let ns = PER_NODE + flops(graph, shapes, id) / FLOPS + moved as f64 / BYTES;
            costs.compute[id.index()] = ns as u64;
        }
        costs
    }

    /// Nanoseconds that a node computes.
    pub fn compute(&self, node: NodeId) -> u64 {
        self.compute.get(node.index()).copied().unwrap_or(0)
    }

    /// Bytes of an output.
    pub fn bytes(&self, output: Output) -> u64 {
        let of_node = self.bytes.get(output.node.index());
        let bytes = of_node.and_then(|b| b.get(output.slot as usize));
        bytes.copied().unwrap_or(0)
    }

    /// Replaces the estimate of a node by what was measured.
    pub fn set_measured(&mut self, node: NodeId, nanoseconds: u64, output_bytes: &[u64]) {
        if let Some(compute) = self.compute.get_mut(node.index()) {
            *compute = nanoseconds;
        }
        if let Some(bytes) = self.bytes.get_mut(node.index()) {
            for (own, measured) in bytes.iter_mut().zip(output_bytes) {
                *own = *measured;
            }
        }
    }
}

/// The dimensions of an output, 1 where unknown.
fn known(shapes: &ShapeMap, output: Output) -> Vec<f64> {
    let shape = shapes.of(output.node).get(output.slot as usize);
    let dims = shape.and_then(|s| s.dims()).unwrap_or(&[]);
    dims.iter().map(|d| d.unwrap_or(1) as f64).collect()
}

/// The multiplications and additions of a node whose op is dominated by them, otherwise 0; unknown
/// dimensions count as 1.
pub fn flops(graph: &Graph, shapes: &ShapeMap, id: NodeId) -> f64 {
    let node = graph.node(id);
    let product = |dims: &[f64]| dims.iter().product::<f64>();
    let out = || product(&known(shapes, Output::new(id, 0)));
    let input = |i: usize| node.inputs.get(i).map_or(Vec::new(), |o| known(shapes, *o));
    match node.op() {
        "Conv2D" | "Conv3D" => {
            let filter = input(1);
            let taps = product(&filter[..filter.len().saturating_sub(1)]);
            2.0 * out() * taps
        }
        "DepthwiseConv2dNative" => 2.0 * out() * product(&input(1)[..input(1).len().min(2)]),
        op @ ("MatMul" | "BatchMatMul" | "BatchMatMulV2" | "BatchMatMulV3") => {
            let attr = match op {
                "MatMul" => "transpose_a",
                _ => "adj_x",
            };
            let a = input(0);
            let k = match node.attrs.bool(attr).unwrap_or(false) {
                true => a.iter().rev().nth(1),
                false => a.last(),
            };
            2.0 * out() * k.copied().unwrap_or(1.0)
        }
        "Einsum" => {
            // The contracted size: every letter of the inputs, times two, over nothing kept.
            let (a, b) = (product(&input(0)), product(&input(1)));
            2.0 * (a * b * out()).sqrt()
        }
        _ => 0.0,
    }
}
