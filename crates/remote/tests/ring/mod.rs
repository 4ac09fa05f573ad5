//! A graph over all tasks of a cluster, for the test and the benchmark of many tasks.

use ferroflow_base::Result;
use ferroflow_model::proto::*;
use ferroflow_model::{graph_from_text, tensor_from_proto, tensor_to_proto};
use ferroflow_remote::LocalCluster;
use ferroflow_runtime::CancelToken;
use ferroflow_tensor::Tensor;

/// `x` goes from task 0 to all, task `t` adds `t` to it (`y`) and to that what its neighbour has (`z`), and task 0
/// adds up what all have (`sum`).
pub fn graph(n: u32) -> Result<GraphDef> {
    let float = "attr { key: 'T' value { type: DT_FLOAT } }";
    let dtype = "attr { key: 'dtype' value { type: DT_FLOAT } }";
    let at = |t: u32| format!("device: '/job:w/task:{t}'");
    let mut text = format!("node {{ name: 'x' op: 'Placeholder' {dtype} {} }}\n", at(0));
    for t in 0..n {
        let (at, next) = (at(t), (t + 1) % n);
        text += &format!(
            "node {{ name: 'c{t}' op: 'Const' {at} {dtype} attr {{ key: 'value' value {{ tensor {{ \
             dtype: DT_FLOAT tensor_shape {{ }} float_val: {t} }} }} }} }}
             node {{ name: 'y{t}' op: 'AddV2' input: 'x' input: 'c{t}' {at} {float} }}
             node {{ name: 'z{t}' op: 'AddV2' input: 'y{t}' input: 'y{next}' {at} {float} }}\n"
        );
    }
    let inputs: String = (0..n).map(|t| format!("input: 'z{t}' ")).collect();
    text += &format!(
        "node {{ name: 'sum' op: 'AddN' {inputs} {} {float} attr {{ key: 'N' value {{ i: {n} }} }} }}",
        at(0)
    );
    graph_from_text(&text)
}

/// What `z` of a task is for this `x`.
pub fn z(n: u32, t: u32, x: f32) -> f32 {
    2.0 * x + t as f32 + ((t + 1) % n) as f32
}

/// What `sum` is for this `x`.
pub fn sum(n: u32, x: f32) -> f32 {
    (0..n).map(|t| z(n, t, x)).sum()
}

/// A client of task 0.
pub struct Client<'a> {
    pub cluster: &'a LocalCluster,
    pub session: String,
}

impl Client<'_> {
    /// Creates a session over a graph.
    pub fn new(cluster: &LocalCluster, graph: GraphDef) -> Result<Client<'_>> {
        let request = CreateSessionRequest {
            graph_def: Some(graph),
            ..Default::default()
        };
        let made = cluster
            .master(0)?
            .create_session(request, &CancelToken::new())?;
        Ok(Client {
            cluster,
            session: made.session_handle,
        })
    }

    /// Plans and registers the parts of these fetches.
    pub fn callable(&self, fetch: Vec<String>) -> Result<i64> {
        let request = MakeCallableRequest {
            session_handle: self.session.clone(),
            options: Some(CallableOptions {
                feed: vec!["x:0".to_string()],
                fetch,
                ..Default::default()
            }),
            ..Default::default()
        };
        Ok(self.cluster.master(0)?.make_callable(request)?.handle)
    }

    /// Runs a step with `x` fed; returns what is fetched.
    pub fn step(&self, handle: i64, x: f32) -> Result<Vec<f32>> {
        let request = RunCallableRequest {
            session_handle: self.session.clone(),
            handle,
            feed: vec![tensor_to_proto(&Tensor::scalar(x))?],
            ..Default::default()
        };
        let master = self.cluster.master(0)?;
        let answer = master.run_callable(request, &CancelToken::new())?;
        let scalar = |proto: &TensorProto| tensor_from_proto(proto, None)?.get()?.to_scalar();
        answer.fetch.iter().map(scalar).collect()
    }

    /// Closes the session.
    pub fn close(self) -> Result<()> {
        let request = CloseSessionRequest {
            session_handle: self.session,
        };
        self.cluster.master(0)?.close_session(request).map(drop)
    }
}
