//! Translates a client's `ConfigProto`.

use crate::device::TaskName;
use ferroflow_base::{Result, invalid_argument, ordered_map, try_ordered_map};
use ferroflow_model::proto::{
    ClusterDef, ConfigProto, GraphDef, RewriterConfig, optimizer_options::Level,
    rewriter_config::Toggle,
};
use ferroflow_runtime::{CompileOptions, CostModel, Lower, Session};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Returns the task of a session whose client describes the cluster: the one at the address that it
/// connected to.
pub(crate) fn session_task(cluster: &ClusterDef, target: &str, own: &TaskName) -> Result<TaskName> {
    let address = target.strip_prefix("grpc://").unwrap_or(target);
    let tasks = cluster.job.iter().flat_map(|job| {
        let tasks = job.tasks.iter();
        tasks.map(move |(index, at)| (&job.name, *index, at))
    });
    let mut here = tasks.filter(|(_, _, at)| *at == address);
    let Some((job, index, _)) = here.next() else {
        return Err(invalid_argument!(
            "The master (current machine) is not included in the provided cluster_def. {}",
            cluster_text(cluster)
        ));
    };
    let index = u32::try_from(index)
        .map_err(|_| invalid_argument!("task {index} of job '{job}' has no valid number"))?;
    let named = TaskName {
        job: job.clone(),
        index,
    };
    match named == *own {
        true => Err(invalid_argument!(
            "The ClusterSpec names the job and task index to be the same names that were provided when \
             the server booted. This is currently not allowed. Job: {job}, task index: {index}"
        )),
        false => Ok(named),
    }
}

/// Whether a session shares no state with others: on request, and if its client describes the cluster,
/// unless it asks to share.
pub(crate) fn isolates_state(config: &ConfigProto) -> bool {
    let experimental = config.experimental.as_ref();
    let shares = experimental.is_some_and(|e| e.share_session_state_in_clusterspec_propagation);
    config.isolate_session_state || config.cluster_def.is_some() && !shares
}

/// The addresses of a cluster by job and task.
pub(crate) type Addresses = BTreeMap<String, BTreeMap<u32, String>>;

/// Returns the addresses of a cluster by job and task.
///
/// # Errors
/// INVALID_ARGUMENT if a task has a negative number or an address without host and port.
pub(crate) fn addresses(cluster: &ClusterDef) -> Result<Addresses> {
    let jobs = cluster.job.iter().map(|job| {
        let tasks = job.tasks.iter().map(|(index, address)| {
            let index = u32::try_from(*index).map_err(|_| {
                invalid_argument!("task {index} of job '{}' has no valid number", job.name)
            })?;
            check_address(address)?;
            Ok((index, address.clone()))
        });
        Ok((job.name.clone(), try_ordered_map(tasks)?))
    });
    try_ordered_map(jobs)
}

fn check_address(address: &str) -> Result<()> {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.contains('/') && port.parse::<u16>().is_ok() => Ok(()),
        _ => Err(invalid_argument!(
            "Could not interpret \"{address}\" as a host-port pair."
        )),
    }
}

/// The text form of a cluster.
fn cluster_text(cluster: &ClusterDef) -> String {
    let mut text = String::new();
    for job in &cluster.job {
        text += &format!("job {{\n  name: {:?}\n", job.name);
        let tasks = ordered_map(&job.tasks);
        for (index, at) in tasks {
            text += &format!("  tasks {{\n    key: {index}\n    value: {at:?}\n  }}\n");
        }
        text += "}\n";
    }
    text
}

/// The custom optimizer (`rewrite_options.custom_optimizers`) by which clients ask for placement by costs.
const COST_PLACEMENT: &str = "cost_placement";

/// Returns the costs of nodes by which a session places them, if its client asks for that.
pub(crate) fn costs(config: &ConfigProto) -> Option<Arc<CostModel>> {
    let rewriter = config.graph_options.as_ref()?.rewrite_options.as_ref()?;
    let mut asked = rewriter.custom_optimizers.iter();
    asked
        .any(|optimizer| optimizer.name == COST_PLACEMENT)
        .then(Arc::default)
}

/// Returns the passes that a client asks for. `opt_level` L0 and `disable_meta_optimizer` disable all; each
/// toggle of the rewriter that is off disables the corresponding passes. Functional control flow is lowered
/// like TensorFlow's `LowerFunctionalOpsPass` does.
pub fn compile_options(config: &ConfigProto) -> CompileOptions {
    let graph = config.graph_options.as_ref();
    let options = graph.and_then(|g| g.optimizer_options.as_ref());
    let rewriter = graph.and_then(|g| g.rewrite_options.as_ref());
    let none = options.is_some_and(|o| o.opt_level() == Level::L0)
        || rewriter.is_some_and(|r| r.disable_meta_optimizer);
    let passes = match none {
        true => CompileOptions::none(),
        false => CompileOptions {
            disabled: rewriter.map(switched_off).unwrap_or_default(),
            ..CompileOptions::all()
        },
    };
    let experimental = config.experimental.as_ref();
    let keeps_calls = experimental.is_some_and(|e| {
        e.executor_type == "SINGLE_THREADED_EXECUTOR" || e.disable_functional_ops_lowering
    });
    CompileOptions {
        lower: if keeps_calls {
            Lower::Never
        } else {
            Lower::Marked
        },
        ..passes
    }
}

fn switched_off(rewriter: &RewriterConfig) -> Vec<String> {
    let toggles: [(Toggle, &[&str]); 6] = [
        (rewriter.constant_folding(), &["constant_folding"]),
        (rewriter.arithmetic_optimization(), &["arithmetic"]),
        (rewriter.common_subgraph_elimination(), &["cse"]),
        (
            rewriter.remapping(),
            &[
                "remapper",
                "dilated_conv",
                "fuse",
                "fuse_read",
                "fuse_sum",
                "elementwise",
            ],
        ),
        (rewriter.loop_optimization(), &["loop_vars"]),
        (
            rewriter.dependency_optimization(),
            &["dependency", "identity", "control_only"],
        ),
    ];
    let off = toggles.into_iter().filter(|(t, _)| *t == Toggle::Off);
    off.flat_map(|(_, passes)| passes)
        .map(ToString::to_string)
        .collect()
}

/// Logs the device of each node of a graph, if one is given, with the reason, for clients that set
/// `log_device_placement`.
pub(crate) fn log_placement(session: &Session, graph: Option<&GraphDef>) {
    let Some(graph) = graph else {
        return;
    };
    let new: HashSet<&str> = graph.node.iter().map(|n| n.name.as_str()).collect();
    match session.explain_placement(None) {
        Ok(placed) => {
            for node in placed.iter().filter(|p| new.contains(p.name.as_str())) {
                tracing::info!("{node} ({})", node.reason);
            }
        }
        // The steps that need the node say so.
        Err(e) => tracing::info!("not placed: {}", e.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_model::proto::{GraphOptions, OptimizerOptions};

    fn config(level: Level, rewriter: RewriterConfig) -> ConfigProto {
        ConfigProto {
            graph_options: Some(GraphOptions {
                optimizer_options: Some(OptimizerOptions {
                    opt_level: level as i32,
                    ..Default::default()
                }),
                rewrite_options: Some(rewriter),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn passes_by_toggle() {
        let off = Toggle::Off as i32;
        let plain = RewriterConfig::default;
        let some = RewriterConfig {
            constant_folding: off,
            loop_optimization: off,
            ..plain()
        };
        let unmapped = RewriterConfig {
            remapping: off,
            ..plain()
        };
        let remapping = [
            "remapper",
            "dilated_conv",
            "fuse",
            "fuse_read",
            "fuse_sum",
            "elementwise",
        ];
        let disabled = RewriterConfig {
            disable_meta_optimizer: true,
            ..plain()
        };
        for (level, rewriter, optimize, left_out) in [
            (Level::L1, plain(), true, &[][..]),
            (Level::L0, plain(), false, &[]),
            (Level::L1, disabled, false, &[]),
            (Level::L1, some, true, &["constant_folding", "loop_vars"]),
            (Level::L1, unmapped, true, &remapping),
        ] {
            let options = compile_options(&config(level, rewriter));
            assert_eq!(options.optimize, optimize);
            assert_eq!(options.disabled, left_out);
        }
    }
}
