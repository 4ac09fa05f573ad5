//! The forward pass of each worker of [`Tasks`], and the gradients of their losses.

use super::tasks::{Tasks, Updates};
use super::{Network, Variable};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_graph::{Gradient, GradientOptions, IndexedSlices, Node, NodeId, Output};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, Tensor};
use std::collections::{HashMap, HashSet};

/// The loss that a worker computes.
pub(super) struct Replica {
    device: String,
    loss: Output,
    /// The fraction of the batch that it is of, if the batch is divided.
    share: Option<Output>,
}

/// The gradients by variables.
type Pairs = Vec<(Variable, Gradient)>;

/// Returns the loss of each worker, after placing all variables; the loss itself if only the trainer's
/// task trains.
pub(super) fn of_loss(net: &mut Network, loss: Output, tasks: &Tasks) -> Result<Vec<Replica>> {
    if tasks.is_local() {
        return Ok(vec![Replica {
            device: String::new(),
            loss,
            share: None,
        }]);
    }
    tasks.place_variables(net);
    let forward = Forward::of(net, loss);
    let parts = match tasks.parts() {
        1 => vec![Part::default(); tasks.workers.len()],
        n => divide(net, &forward.batches(net)?, n)?,
    };
    let workers = tasks.workers.iter().zip(parts).enumerate();
    workers
        .map(|(i, (device, part))| {
            let loss = forward.copy(net, i, device, loss, &part.inputs)?;
            Ok(Replica {
                device: device.clone(),
                loss,
                share: part.share,
            })
        })
        .collect()
}

/// Returns, for each step that trains, its loss and its gradients by the variables that affect it.
pub(super) fn gradients(
    net: &mut Network,
    replicas: &[Replica],
    tasks: &Tasks,
) -> Result<Vec<(Output, Pairs)>> {
    let trainable = net.variables.iter().filter(|v| v.trainable);
    let variables: Vec<Variable> = trainable.cloned().collect();
    let values: Vec<Output> = variables.iter().map(|v| v.value).collect();
    let mut of_replicas = Vec::new();
    for replica in replicas {
        let all = net.on(&replica.device, |net| {
            let options = GradientOptions::default();
            net.builder
                .gradients_as_slices(&[replica.loss], &values, &options)
        })?;
        let pairs = variables.iter().cloned().zip(all);
        let pairs: Pairs = pairs.filter_map(|(v, g)| Some((v, g?))).collect();
        of_replicas.push(pairs);
    }
    if tasks.updates == Updates::Asynchronous || replicas.len() == 1 {
        let losses = replicas.iter().map(|r| r.loss);
        return Ok(losses.zip(of_replicas).collect());
    }
    let mut scaled = Vec::new();
    for replica in replicas {
        scaled.push(replica.scale(net, replica.loss)?);
    }
    let loss = net.op("AddN").inputs(&scaled).output()?;
    Ok(vec![(loss, mean(net, replicas, of_replicas)?)])
}

/// Returns the means of the workers' gradients, weighted by their shares of the batch, each on the
/// device of its variable.
fn mean(net: &mut Network, replicas: &[Replica], of_replicas: Vec<Pairs>) -> Result<Pairs> {
    let mut of_variables: Vec<(Variable, Vec<Gradient>)> = Vec::new();
    for (replica, pairs) in replicas.iter().zip(of_replicas) {
        for (variable, gradient) in pairs {
            let scaled = match gradient {
                Gradient::Dense(value) => Gradient::Dense(replica.scale(net, value)?),
                Gradient::Slices(slices) => Gradient::Slices(IndexedSlices {
                    values: replica.scale(net, slices.values)?,
                    ..slices
                }),
            };
            match of_variables
                .iter_mut()
                .find(|(v, _)| v.name == variable.name)
            {
                Some((_, gradients)) => gradients.push(scaled),
                None => of_variables.push((variable, vec![scaled])),
            }
        }
    }
    let mut means = Vec::new();
    for (variable, gradients) in of_variables {
        let sum = net.on(&variable.device, |net| sum(net, &gradients))?;
        means.push((variable, sum));
    }
    Ok(means)
}

/// Returns the sum of gradients of one variable, which are all dense or all slices.
fn sum(net: &mut Network, gradients: &[Gradient]) -> Result<Gradient> {
    let dense = gradients.iter().map(|g| match g {
        Gradient::Dense(value) => Some(*value),
        Gradient::Slices(_) => None,
    });
    if let Some(dense) = dense.collect::<Option<Vec<Output>>>() {
        return Ok(Gradient::Dense(net.op("AddN").inputs(&dense).output()?));
    }
    let slices = gradients.iter().map(|g| match g {
        Gradient::Dense(_) => None,
        Gradient::Slices(slices) => Some(*slices),
    });
    let slices: Option<Vec<IndexedSlices>> = slices.collect();
    let slices = slices.ok_or_else(|| internal!("workers differ in the form of a gradient"))?;
    let first = slices.first().copied();
    let first = first.ok_or_else(|| internal!("a variable without gradients"))?;
    let axis = net.builder.constant("Const", Tensor::scalar(0i32))?;
    let mut joined = |parts: Vec<Output>| {
        let node = net.op("ConcatV2").inputs(&parts);
        node.input(axis).output()
    };
    Ok(Gradient::Slices(IndexedSlices {
        values: joined(slices.iter().map(|s| s.values).collect())?,
        indices: joined(slices.iter().map(|s| s.indices).collect())?,
        dense_shape: first.dense_shape,
    }))
}

impl Replica {
    /// Multiplies a value of the worker by its share; the mean of no examples counts for nothing.
    fn scale(&self, net: &mut Network, value: Output) -> Result<Output> {
        match self.share {
            None => Ok(value),
            Some(share) => net.on(&self.device, |net| net.apply("MulNoNan", &[value, share])),
        }
    }
}

/// A worker's part of a batch.
#[derive(Clone, Default)]
struct Part {
    /// What it reads instead of each input.
    inputs: HashMap<Output, Output>,
    share: Option<Output>,
}

/// Divides a batch into `n` parts, whose sizes differ by at most one example.
fn divide(net: &mut Network, batches: &[Output], n: usize) -> Result<Vec<Part>> {
    let longs = |net: &mut Network, from: i64| {
        let all: Vec<i64> = (from..from + n as i64).collect();
        net.builder.constant("Const", Tensor::vector(&all)?)
    };
    let first = batches.first().copied();
    let first = first.ok_or_else(|| {
        invalid_argument!(
            "the loss does not depend on an input, so that there is no batch to divide among workers"
        )
    })?;
    let (begin, end) = (longs(net, 0)?, longs(net, 1)?);
    let parts = net.builder.constant("Const", Tensor::scalar(n as i64))?;
    let axis = net.builder.constant("Const", Tensor::scalar(0i32))?;
    let shape = net
        .op("Shape")
        .input(first)
        .attr("out_type", AttrValue::Type(DType::Int64))
        .output()?;
    let size = net.apply("GatherV2", &[shape, axis, axis])?;
    let mut border = |at: Output| {
        let product = net.apply("Mul", &[at, size])?;
        net.apply("FloorDiv", &[product, parts])
    };
    let (begin, end) = (border(begin)?, border(end)?);
    let sizes = net.apply("Sub", &[end, begin])?;
    let mut float = |value: Output| {
        let cast = net.op("Cast").input(value);
        cast.attr("DstT", AttrValue::Type(DType::Float)).output()
    };
    let (share, all) = (float(sizes)?, float(size)?);
    let shares = net.apply("RealDiv", &[share, all])?;
    let n = AttrValue::Int(n as i64);
    let unpack = net.op("Unpack").input(shares);
    let shares = unpack.attr("num", n.clone()).outputs()?;
    let mut divided: Vec<Part> = shares
        .into_iter()
        .map(|share| Part {
            inputs: HashMap::new(),
            share: Some(share),
        })
        .collect();
    for batch in batches {
        let split = net.node("SplitV", &[*batch, sizes, axis]);
        let pieces = split.attr("num_split", n.clone()).outputs()?;
        for (part, piece) in divided.iter_mut().zip(pieces) {
            part.inputs.insert(*batch, piece);
        }
    }
    Ok(divided)
}

/// The nodes that compute a loss of variables and what is fed.
struct Forward {
    nodes: Vec<NodeId>,
    /// Those of them that initialize a table.
    initializers: Vec<NodeId>,
    /// The handles of variables.
    handles: HashSet<NodeId>,
    /// What the nodes read and all workers share.
    shared: HashSet<NodeId>,
}

impl Forward {
    fn of(net: &Network, loss: Output) -> Forward {
        let variables = net.variables.iter();
        let handles: HashSet<NodeId> = variables.clone().map(|v| v.handle.node).collect();
        let values: HashSet<NodeId> = variables.map(|v| v.value.node).collect();
        let is_shared = |id: &NodeId, node: &Node| {
            let is_fed = matches!(node.op(), "Placeholder" | "PlaceholderWithDefault");
            is_fed || handles.contains(id) || values.contains(id)
        };
        let (mut nodes, mut shared) = (HashSet::new(), HashSet::new());
        let mut initializers = Vec::new();
        let mut waiting = vec![loss.node];
        loop {
            while let Some(id) = waiting.pop() {
                let node = net.builder.graph().node(id);
                if is_shared(&id, node) {
                    shared.insert(id);
                } else if nodes.insert(id) {
                    waiting.extend(node.predecessors());
                }
            }
            // A table is filled by the worker that reads it.
            let of_table = net.tables.iter().copied().find(|id| {
                let mut reads = net.builder.graph().node(*id).predecessors();
                !initializers.contains(id) && reads.any(|from| nodes.contains(&from))
            });
            let Some(table) = of_table else {
                break;
            };
            initializers.push(table);
            waiting.push(table);
        }
        let mut nodes: Vec<NodeId> = nodes.into_iter().collect();
        nodes.sort_unstable();
        Forward {
            nodes,
            initializers,
            handles,
            shared,
        }
    }

    /// The inputs that are batches: all but scalars.
    fn batches(&self, net: &Network) -> Result<Vec<Output>> {
        let mut batches = Vec::new();
        for name in &net.inputs {
            let input = net.builder.graph().find(name);
            if let Some(id) = input.filter(|id| self.shared.contains(id)) {
                let input = Output::new(id, 0);
                if net.shape(input)?.rank() != Some(0) {
                    batches.push(input);
                }
            }
        }
        Ok(batches)
    }

    /// Adds the nodes for worker `i`, which reads `inputs`; returns its loss.
    fn copy(
        &self,
        net: &mut Network,
        i: usize,
        device: &str,
        loss: Output,
        inputs: &HashMap<Output, Output>,
    ) -> Result<Output> {
        let change = |node: &mut Node| {
            // A node that takes the handle of a variable is where the variable is.
            if node.inputs.iter().any(|x| self.handles.contains(&x.node)) {
                node.device.clear();
            }
            // Workers do not draw the same numbers.
            if let (true, Ok(seed)) = (node.def.flags.stateful, node.attrs.int("seed2")) {
                let is_seeded = seed != 0 || node.attrs.int("seed").is_ok_and(|s| s != 0);
                if is_seeded {
                    let seed = seed.wrapping_add(i as i64);
                    node.attrs.set("seed2", AttrValue::Int(seed));
                }
            }
        };
        let instead = |input: Output| inputs.get(&input).copied();
        let copies = net.on(device, |net| {
            let name = format!("worker_{i}");
            net.builder.copy_nodes(&name, &self.nodes, instead, change)
        })?;
        let copied: HashMap<NodeId, NodeId> = self.nodes.iter().copied().zip(copies).collect();
        let fills = self.initializers.iter();
        net.tables.extend(fills.filter_map(|id| copied.get(id)));
        Ok(Output {
            node: copied.get(&loss.node).copied().unwrap_or(loss.node),
            ..loss
        })
    }
}
