//! `ferroflow inspect --place`: where the nodes of a model would run on a cluster.

use crate::out::say;
use ferroflow_base::invalid_argument;
use ferroflow_remote::ServerDef;
use ferroflow_runtime::{
    CompileOptions, CostModel, DeviceSet, Graph, Lower, Result, Session, SessionOptions, Signature,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Prints the device of each node with the reason. `cluster` is JOB=TASKS;JOB=…, with a number of tasks
/// or their addresses.
pub fn show(graph: &Graph, signature: &Signature, cluster: &str) -> Result<()> {
    let options = SessionOptions {
        threads: 1,
        compile: CompileOptions {
            lower: Lower::Marked,
            ..CompileOptions::none()
        },
        devices: DeviceSet {
            names: devices(cluster)?,
            soft: true,
            ..Default::default()
        },
        costs: Some(Arc::new(CostModel::default())),
        ..Default::default()
    };
    let session = Session::new(graph.clone(), options);
    let placed = session.explain_placement(Some(signature))?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for node in &placed {
        let (name, op, device) = (&node.name, &node.op, &node.device);
        say!("{name}: {op}: {device} ({})", node.reason);
        *counts.entry(device).or_default() += 1;
    }
    say!("nodes by device:");
    for (device, n) in counts {
        say!("  {device:<48} {n:>6}");
    }
    Ok(())
}

/// The CPU of each task.
fn devices(cluster: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for part in cluster.split(';').filter(|p| !p.is_empty()) {
        let (job, tasks) = part.split_once('=').unwrap_or((part, "1"));
        let mut letters = job.chars();
        let is_name = letters.next().is_some_and(|c| c.is_ascii_alphabetic())
            && letters.all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            return Err(invalid_argument!(
                "--place: '{job}' is not the name of a job"
            ));
        }
        let n = match tasks.parse() {
            Ok(n) if n <= 10_000 => n,
            Ok(_) => return Err(invalid_argument!("--place: more than 10,000 tasks")),
            Err(_) => {
                let def = ServerDef::from_flags(part, job, 0)?;
                let tasks = def.cluster.get(job).into_iter().flatten();
                for (_, address) in tasks.clone() {
                    if !address.contains(':') {
                        return Err(invalid_argument!(
                            "--place: '{address}' is neither a number of tasks nor HOST:PORT"
                        ));
                    }
                }
                tasks.count()
            }
        };
        let name = |i| format!("/job:{job}/replica:0/task:{i}/device:CPU:0");
        names.extend((0..n).map(name));
    }
    match names.is_empty() {
        true => Err(invalid_argument!(
            "--place: expected JOB=TASKS;JOB=…, such as worker=2"
        )),
        false => Ok(names),
    }
}
