//! Trains a linear model with several processes whose gradients are averaged by MPI.
//!
//! ```text
//! cargo build --release -p ferroflow-remote --features mpi --example mpi_training
//! mpirun -n 4 target/release/examples/mpi_training [FIRST_PORT]
//! ```
//!
//! Each process has a server, as `ferroflow server --mpi` is one, and a client that trains on its share of each batch.
//! CollectiveReduce returns the mean of the gradients to all of them, so that they keep the same weights. The first one
//! prints the loss of the whole batch, step by step: it is that of one process.

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_model::graph_from_text;
use ferroflow_model::proto::{ConfigProto, GraphDef};
use ferroflow_remote::{
    GrpcSession, GrpcStep, MasterOptions, Mpi, Server, ServerDef, ServerOptions,
};
use ferroflow_tensor::Tensor;

/// Rows of a batch, over all processes.
const BATCH: usize = 64;
/// Columns of the input.
const WIDTH: usize = 8;
/// Steps of training.
const STEPS: usize = 20;

fn main() -> Result<()> {
    let port = match std::env::args().nth(1) {
        None => 8888,
        Some(text) => text
            .parse()
            .map_err(|_| invalid_argument!("'{text}' is not a port"))?,
    };
    train(port).map(drop)
}

/// Trains as the task that `mpirun` started; returns the losses.
pub fn train(first_port: u16) -> Result<Vec<f32>> {
    let read = |name: &str| std::env::var(name).ok();
    let def = ServerDef::from_launcher(&read, "worker", first_port, None)?;
    let mut def = def.ok_or_else(|| invalid_argument!("start this program with mpirun"))?;
    def.defaults.collective_leader = "/job:worker/replica:0/task:0".to_string();
    let (rank, n) = (def.task.index as usize, def.cluster["worker"].len());
    let mpi = Mpi::begin(&def.task)?;
    let address = def.address()?.to_string();
    let server = Server::bind(ServerOptions {
        address: address
            .parse()
            .map_err(|e| internal!("the address {address}: {e}"))?,
        monitor: None,
        tls: None,
        max_message: usize::MAX,
        master: MasterOptions {
            server: def,
            threads: 2,
            carrier: Some(mpi.clone()),
            ..Default::default()
        },
    })?;
    // Ends with the process.
    std::thread::spawn(move || server.run(std::future::pending()));
    let losses = steps(&address, rank, n)?;
    if rank == 0 {
        println!("buffers sent by MPI: {}", mpi.n_sent());
    }
    mpi.end();
    Ok(losses)
}

/// The client of one process.
fn steps(address: &str, rank: usize, n: usize) -> Result<Vec<f32>> {
    let config = ConfigProto {
        // This task only: the others have clients of their own.
        device_filters: vec![format!("/job:worker/task:{rank}")],
        ..Default::default()
    };
    let session = GrpcSession::new(&format!("grpc://{address}"), config)?;
    session.extend(graph(rank, n)?)?;
    session.run(GrpcStep {
        targets: vec!["init".to_string()],
        ..Default::default()
    })?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (x, y) = share(step, rank, n)?;
        let (results, _) = session.run(GrpcStep {
            feeds: vec![("x:0".to_string(), x), ("y:0".to_string(), y)],
            fetches: vec!["mean_loss:0".to_string()],
            targets: vec!["train".to_string()],
            ..Default::default()
        })?;
        let loss = results.first().ok_or_else(|| internal!("no loss"))?;
        losses.push(loss.to_scalar::<f32>()?);
        if rank == 0 {
            println!("step {step}: loss {:.7}", losses[step]);
        }
    }
    Ok(losses)
}

/// The rows of a batch that a process has.
fn share(step: usize, rank: usize, n: usize) -> Result<(Tensor, Tensor)> {
    let rows = BATCH / n;
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for row in rank * rows..(rank + 1) * rows {
        let values = (0..WIDTH).map(|i| ((step * 31 + row * 7 + i * 13) as f32 * 0.37).sin());
        let values: Vec<f32> = values.collect();
        y.push(
            values
                .iter()
                .zip(1..)
                .map(|(v, i)| v * i as f32)
                .sum::<f32>(),
        );
        x.extend(values);
    }
    Ok((
        Tensor::from_slice([rows, WIDTH], &x)?,
        Tensor::from_slice([rows, 1], &y)?,
    ))
}

/// The squared error of a linear model, the mean of its gradients over all processes, and a step of descent.
fn graph(rank: usize, n: usize) -> Result<GraphDef> {
    let at = format!("device: '/job:worker/task:{rank}'");
    let float = "attr { key: 'T' value { type: DT_FLOAT } }";
    let dtype = "attr { key: 'dtype' value { type: DT_FLOAT } }";
    let constant = |name: &str, tensor: &str, kind: &str| {
        format!(
            "node {{ name: '{name}' op: 'Const' {at} attr {{ key: 'dtype' value {{ type: {kind} }} }} attr {{ \
             key: 'value' value {{ tensor {{ dtype: {kind} {tensor} }} }} }} }}\n"
        )
    };
    let mean = |name: &str, of: &str, instance: i64| {
        let int = |key: &str, value: i64| format!("attr {{ key: '{key}' value {{ i: {value} }} }}");
        format!(
            "node {{ name: '{name}' op: 'CollectiveReduce' input: '{of}' {at} {float} {} {} {} attr {{ key: \
             'merge_op' value {{ s: 'Add' }} }} attr {{ key: 'final_op' value {{ s: 'Div' }} }} attr {{ key: \
             'subdiv_offsets' value {{ list {{ i: 0 }} }} }} }}\n",
            int("group_size", n as i64),
            int("group_key", 1),
            int("instance_key", instance),
        )
    };
    let text = format!(
        "node {{ name: 'x' op: 'Placeholder' {at} {dtype} }}
         node {{ name: 'y' op: 'Placeholder' {at} {dtype} }}
         node {{ name: 'w' op: 'VarHandleOp' {at} {dtype} attr {{ key: 'shape' value {{ shape {{ dim {{ size: \
         {WIDTH} }} dim {{ size: 1 }} }} }} }} attr {{ key: 'shared_name' value {{ s: 'w' }} }} }}
         node {{ name: 'init' op: 'AssignVariableOp' input: 'w' input: 'zeros' {at} {dtype} }}
         node {{ name: 'value' op: 'ReadVariableOp' input: 'w' {at} {dtype} }}
         node {{ name: 'guess' op: 'MatMul' input: 'x' input: 'value' {at} {float} }}
         node {{ name: 'error' op: 'Sub' input: 'guess' input: 'y' {at} {float} }}
         node {{ name: 'squared' op: 'Square' input: 'error' {at} {float} }}
         node {{ name: 'loss' op: 'Mean' input: 'squared' input: 'axes' {at} {float} attr {{ key: 'Tidx' value \
         {{ type: DT_INT32 }} }} }}
         node {{ name: 'sums' op: 'MatMul' input: 'x' input: 'error' {at} {float} attr {{ key: 'transpose_a' \
         value {{ b: true }} }} }}
         node {{ name: 'train' op: 'ResourceApplyGradientDescent' input: 'w' input: 'rate' input: 'mean_sums' \
         {at} {float} }}\n"
    );
    // The gradient of the mean over the rows of a process is its sum times two, over their number.
    let rate = 0.1 * 2.0 * n as f32 / BATCH as f32;
    let scalar = |value: f32| format!("tensor_shape {{ }} float_val: {value}");
    let zeros =
        format!("tensor_shape {{ dim {{ size: {WIDTH} }} dim {{ size: 1 }} }} float_val: 0");
    let axes = "tensor_shape { dim { size: 2 } } int_val: 0 int_val: 1";
    let text = text
        + &constant("zeros", &zeros, "DT_FLOAT")
        + &constant("rate", &scalar(rate), "DT_FLOAT")
        + &constant("axes", axes, "DT_INT32")
        + &mean("mean_loss", "loss", 1)
        + &mean("mean_sums", "sums", 2);
    graph_from_text(&text)
}
